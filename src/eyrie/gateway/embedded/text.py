"""From generated ids to the text that a reply carries, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what a decoder gives for a character whose bytes are not all there yet


class AnswerText:
    """Decodes a growing list of ids; the end token is no text, and text ends before the first stop string."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], end_ids: frozenset[int], stop: tuple[str, ...] = ()
    ) -> None:
        self._decode, self._end_ids, self._stop = decode, end_ids, stop
        self._held = max((len(text) - 1 for text in stop), default=0)
        self._sent = 0

    def whole(self, ids: Sequence[int]) -> str:
        """The text of a finished answer."""
        text = self._decode([token for token in ids if token not in self._end_ids])
        cuts = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        return text[: min(cuts)] if cuts else text

    def more(self, ids: Sequence[int], finished: bool) -> str:
        """The text that is new since the last call and cannot change any more.

        Until the answer has finished, a half character is held back, and so is what a stop string could start with.
        """
        text = self.whole(ids)
        end = len(text) if finished else max(self._sent, len(text.rstrip(REPLACEMENT)) - self._held)
        piece = text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece
