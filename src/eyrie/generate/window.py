"""The token budget of a dataset: rows in index order until their output tokens reach it.

Which rows are in the output follows from the rows' tokens alone, never from the order in which answers came.
"""

from __future__ import annotations

import trio

ENOUGH = 16  # answered rows before their mean is trusted


class TokenWindow:
    """Decides whether the next row in index order is to be asked. `budget` None: every row is."""

    def __init__(self, budget: int | None, guess: int) -> None:
        self.budget = budget
        self.tokens, self.rows = 0, 0  # of the rows that are done
        self.under_way = 0
        self._guess = guess  # tokens of a row, until enough are seen
        self._changed = trio.Event()

    @property
    def expected(self) -> float:
        """Output tokens of all rows so far once those under way are done."""
        mean = self.tokens / self.rows if self.rows >= ENOUGH else self._guess
        return self.tokens + self.under_way * max(mean, 1.0)

    @property
    def reached(self) -> bool:
        """All rows so far are done and fill the budget: no later row is needed."""
        return self.budget is not None and self.under_way == 0 and self.tokens >= self.budget

    @property
    def open(self) -> bool:
        """Whether one more row is expected to be needed."""
        return self.budget is None or self.expected < self.budget

    def begin(self) -> None:
        """The next row is being asked."""
        self.under_way += 1

    def end(self, tokens: int) -> None:
        """A row that was begun is done."""
        self.under_way -= 1
        self.held(tokens)

    def abandon(self) -> None:
        """A row that was begun will not be done in this run."""
        self.under_way -= 1
        self._wake()

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
