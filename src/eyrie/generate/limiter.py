"""How many requests may be under way: additive increase, multiplicative decrease, on a clock that is passed in.

Many rows with private back-off lose to a rate limit together; one shared limiter with one shared cool-down does not.
"""

from __future__ import annotations

from dataclasses import dataclass

START = 64.0  # requests under way at first; doubles per round until the first overload
GROWTH = 0.05  # of the limit per round afterwards
CUT = 0.8  # what an overload leaves of the limit
EPISODE_S = 5.0  # overloads within so many seconds are one
SATURATED = 0.8  # the limit only grows while so much of it is in use
COOL_S = 0.5  # pause after an overload without Retry-After


@dataclass
class Limiter:
    """`ceiling`: slots at most. Times in seconds of one monotonic clock."""

    ceiling: int
    limit: float = START
    slow_start: bool = True
    ready_at: float = 0.0  # no request starts before
    _cut_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.limit = min(self.limit, float(self.ceiling))

    def success(self, busy: int) -> None:
        """A request ended well while `busy` were under way."""
        if busy >= SATURATED * self.limit:
            step = 1.0 if self.slow_start else GROWTH
            self.limit = min(float(self.ceiling), self.limit + step)

    def overload(self, now: float, retry_after: float | None) -> None:
        """The gateway said that it is too much. Everybody waits as long as it asked."""
        self.ready_at = max(self.ready_at, now + (COOL_S if retry_after is None else retry_after))
        if now - self._cut_at >= EPISODE_S:
            self.limit = max(1.0, self.limit * CUT)
            self._cut_at = now
        self.slow_start = False

    def allowed(self, now: float) -> int:
        """Requests that may be under way now."""
        return 0 if now < self.ready_at else max(1, int(self.limit))
