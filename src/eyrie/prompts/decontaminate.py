"""Word n-grams shared with a benchmark: such prompts are not trained on.

The usual test (Brown et al. 2020, appendix C, with 13 words; 10 here by default, as prompts are short): lower-cased
words without punctuation, a run of `n` equal words is a hit. Phrases that three or more prompts of one benchmark share
are its wording ("Complete the following Python function"), not its content, and count for nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

WORD = re.compile(r"[^\W_]+")
PHRASE = 3  # prompts of one benchmark that share a run of words before it is mere wording

Run = tuple[str, ...]


def words(text: str) -> list[str]:
    """The words of a text as they are compared: case folded, split at everything but letters and digits."""
    return WORD.findall(text.casefold())


def runs(text: str, length: int) -> Iterator[Run]:
    """Every run of `length` words of `text`; the whole text when it is shorter (it can only match a whole text)."""
    found = words(text)
    if not found:
        return
    for start in range(max(1, len(found) - length + 1)):
        yield tuple(found[start : start + length])


@dataclass
class Benchmarks:
    """The word runs of all benchmark prompts; `length` words each."""

    length: int
    _seen: dict[Run, str] = field(default_factory=dict)

    def add(self, prompts: Iterable[tuple[str, str]]) -> int:
        """Take one benchmark's `(id, text)` prompts; returns how many."""
        first: dict[Run, str] = {}
        shared: Counter[Run] = Counter()
        count = 0
        for identity, text in prompts:
            count += 1
            own = set(runs(text, self.length))
            shared.update(own)
            for run in own:
                first.setdefault(run, identity)
        self._seen.update({run: first[run] for run, prompts_with in shared.items() if prompts_with < PHRASE})
        return count

    def hit(self, text: str) -> tuple[str, str] | None:
        """`(benchmark prompt's id, the shared words)` of the first run that a benchmark has too, or None."""
        for run in runs(text, self.length) if self._seen else ():
            if run in self._seen:
                return self._seen[run], " ".join(run)
        return None
