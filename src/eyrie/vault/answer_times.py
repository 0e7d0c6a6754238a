"""How long an answer takes: after that, a lost request is most likely answered, and the response cache has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyrie.vault.reader import Reader

LAST = 2000  # answers that are looked at
QUANTILE_PERCENT = 95
REFRESH_S = 10.0


def longest(seconds: list[float]) -> float:
    """The quantile of what answers took; the longest while there are few, 0 where there is none."""
    ordered = sorted(seconds)
    return max(0.0, ordered[-(-len(ordered) * QUANTILE_PERCENT // 100) - 1]) if ordered else 0.0


class AnswerTimes:
    """Answer times of the models that are being asked, read from the vault now and then: those of earlier jobs and of
    others that run beside this one count too."""

    def __init__(self, vault: Reader) -> None:
        self._vault = vault
        self._known: dict[str, tuple[float, float]] = {}  # model -> (asked at, seconds)

    def seconds(self, model: str) -> float:
        """For so long after it was sent, a request may still be being answered."""
        now = time.monotonic()
        asked_at, seconds = self._known.get(model, (float("-inf"), 0.0))
        if now - asked_at >= REFRESH_S or (seconds == 0.0 and now - asked_at >= 1.0):
            seconds = longest(self._vault.answer_seconds(model, LAST))
            self._known[model] = now, seconds
        return seconds
