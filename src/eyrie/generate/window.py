"""The token budget of a dataset: rows in index order until their output tokens reach it.

Which rows are in the output follows from the rows' tokens alone, never from the order in which answers came. When to
stop asking follows from what the rows under way will bring, and that is more than the mean: short answers are done
and gone, so what is still under way is long. Counting each at the mean would ask, and pay, for rows that nobody needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import trio

ENOUGH = 16  # answered rows before their tokens are trusted
SAMPLES = 2048  # rows done last that the estimate rests on
REFRESH_S = 0.5  # how often the rows under way are estimated anew


class TokenWindow:
    """Decides whether the next row in index order is to be asked. `budget` None: every row is."""

    def __init__(self, budget: int | None, guess: int, clock: Callable[[], float] = trio.current_time) -> None:
        self.budget = budget
        self.tokens, self.rows = 0, 0  # of the rows that are done
        self._guess = guess  # tokens of a row, until enough are seen
        self._clock = clock
        self._began: dict[int, float] = {}  # rows under way: when they began
        self._estimates: dict[int, float] = {}
        self._estimated = 0.0  # sum of the estimates
        self._refreshed = float("-inf")
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)  # (seconds, tokens) of rows asked here
        self._changed = trio.Event()

    @property
    def under_way(self) -> int:
        return len(self._began)

    @property
    def expected(self) -> float:
        """Output tokens of all rows so far once those under way are done."""
        now = self._clock()
        if self.budget is not None and now - self._refreshed >= REFRESH_S:
            self._refresh(now)
        return self.tokens + self._estimated

    @property
    def _mean(self) -> float:
        return max(1.0, self.tokens / self.rows) if self.rows >= ENOUGH else float(self._guess)

    def _refresh(self, now: float) -> None:
        """A row that is under way for `t` seconds will bring what rows that took longer than `t` brought."""
        self._refreshed = now
        estimate = _by_age(self._samples, self._mean) if len(self._samples) >= ENOUGH else lambda age: self._mean
        self._estimates = {row: estimate(now - began) for row, began in self._began.items()}
        self._estimated = sum(self._estimates.values())

    @property
    def reached(self) -> bool:
        """All rows so far are done and fill the budget: no later row is needed."""
        return self.budget is not None and not self._began and self.tokens >= self.budget

    @property
    def open(self) -> bool:
        """Whether one more row is expected to be needed."""
        return self.budget is None or self.expected < self.budget

    def begin(self, row: int) -> None:
        """`row` is being asked."""
        self._began[row] = self._clock()
        self._estimates[row] = self._mean
        self._estimated += self._estimates[row]

    def end(self, row: int, tokens: int) -> None:
        """A row that was begun is done."""
        self._samples.append((self._clock() - self._forget(row), tokens))
        self.held(tokens)

    def abandon(self, row: int) -> None:
        """A row that was begun will not be done in this run."""
        self._forget(row)
        self._wake()

    def _forget(self, row: int) -> float:
        self._estimated -= self._estimates.pop(row)
        return self._began.pop(row)

    def held(self, tokens: int) -> None:
        """The next row is in the vault already."""
        self.tokens += tokens
        self.rows += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        """Return when another row is done."""
        await self._changed.wait()


def _by_age(samples: deque[tuple[float, int]], mean: float) -> Callable[[float], float]:
    """age in seconds -> mean tokens of the samples that took longer; of the longest ones when hardly any did."""
    ordered = sorted(samples)
    ages = [seconds for seconds, _ in ordered]
    sums, total = [], 0
    for _, tokens in reversed(ordered):
        total += tokens
        sums.append(total)
    last = len(ordered) - ENOUGH // 2

    def estimate(age: float) -> float:
        first = min(bisect_left(ages, age), last)
        count = len(ordered) - first
        return max(1.0, mean if first == 0 else sums[count - 1] / count)

    return estimate
