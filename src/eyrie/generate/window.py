"""The token budget of a dataset: rows in index order until their output tokens reach it.

Which rows are in the output follows from the rows' tokens alone, never from the order in which answers came. When to
stop asking follows from what the rows under way will bring, and that is more than the mean: short answers are done
and gone, so what is still under way is long. Counting each at the mean would ask, and pay, for rows that nobody
needs. Rows under way are censored observations; the estimate is Kaplan and Meier's, in the form that hands the weight
of each censored row on to those that took longer (Efron 1967: redistribution to the right).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

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
        self._began: dict[int, float | None] = {}  # rows under way: when they were sent, if they were
        self._estimates: dict[int, float] = {}
        self._estimated = 0.0  # sum of the estimates
        self._mean: float | None = None  # of all rows asked here, those under way at their estimates
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
    def _fresh(self) -> float:
        """Tokens of a row of which nothing is known yet."""
        if self._mean is not None:
            return self._mean
        return max(1.0, self.tokens / self.rows) if self.rows >= ENOUGH else float(self._guess)

    def _refresh(self, now: float) -> None:
        self._refreshed = now
        if len(self._samples) >= ENOUGH:
            ages = {row: 0.0 if began is None else now - began for row, began in self._began.items()}
            self._estimates, self._mean = redistribute(self._samples, ages)
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
        """`row` is to be asked."""
        self._began[row] = None
        self._estimates[row] = self._fresh
        self._estimated += self._estimates[row]

    def sent(self, row: int) -> None:
        """The first request of `row` goes out: from here on its age tells how long it will be."""
        if row in self._began and self._began[row] is None:
            self._began[row] = self._clock()

    def end(self, row: int, tokens: int) -> None:
        """A row that was begun is done."""
        began = self._forget(row)
        if began is not None:
            self._samples.append((self._clock() - began, tokens))
        self.held(tokens)

    def abandon(self, row: int) -> None:
        """A row that was begun will not be done in this run."""
        self._forget(row)
        self.wake()

    def _forget(self, row: int) -> float | None:
        self._estimated -= self._estimates.pop(row)
        return self._began.pop(row)

    def held(self, tokens: int) -> None:
        """The next row is in the vault already."""
        self.tokens += tokens
        self.rows += 1
        self.wake()

    def wake(self) -> None:
        """Let whoever waits for a change look again."""
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        """Return when another row is done, or somebody says `wake`."""
        await self._changed.wait()


def redistribute(samples: Iterable[tuple[float, int]], ages: dict[int, float]) -> tuple[dict[int, float], float]:
    """Estimated tokens of rows under way, and the mean of all rows.

    `samples`: (seconds, tokens) of rows that are done; `ages`: seconds that rows are under way. Each of these brings
    what the rows that took longer brought on average, the older ones under way among them at their own estimates; one
    that is older than all that are done goes on at the pace of the longest.
    """
    done = sorted(samples, reverse=True)
    estimates: dict[int, float] = {}
    weight, total, at = 0, 0.0, 0
    for row, age in sorted(ages.items(), key=lambda item: -item[1]):
        while at < len(done) and done[at][0] > age:
            weight, total, at = weight + 1, total + done[at][1], at + 1
        if weight:
            estimates[row] = max(1.0, total / weight)
        else:
            seconds, tokens = done[0]
            estimates[row] = max(1.0, tokens * age / max(seconds, 1e-9))
        weight, total = weight + 1, total + estimates[row]
    total += sum(tokens for _, tokens in done[at:])
    return estimates, max(1.0, total / (weight + len(done) - at))
