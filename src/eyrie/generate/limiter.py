"""How many requests may be under way: additive increase, multiplicative decrease, on a clock that is passed in.

Many rows with private back-off lose to a rate limit together; one limiter with one cool-down for all of them does
not. The limit counts the requests of the whole account: a job that leases a quarter of the slots uses a quarter of
it, so eight jobs start as gently as one.

A refusal comes within seconds and an answer after a minute, so growth goes by the clock: a round of `ROUND_S` in
which the limit was used and hardly anything was refused is the proof that more may be tried. Waiting for answers
instead would take minutes to reach 2000. The cut follows the share that is refused: among thousands of requests some
are refused whatever one sends, and a limiter that answers each of those with a cut ends at one request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

START = 64.0  # requests under way at first
ROUND_S = 3.0  # the limit grows, and is cut, once in so long at most
GROWTH = 0.05  # of the limit, after a clean round
PATIENCE = 4  # so many clean rounds double the growth: a limit that a storm cut to nothing is back in minutes
MEMORY = 1 / 32  # weight of one request in the shares of refusals and failures
TOLERATED = 0.2  # share of refusals that cuts nothing
MOSTLY = 0.5  # such a share of refusals doubles the cool-down; such a share of failures is an overload
CUT = 0.8  # what a cut leaves at least; half the refused share goes
SATURATED = 0.8  # the limit only grows while so much of it is in use
COOL_S, COOL_MAX_S = 1.0, 30.0  # cool-down without Retry-After when everything is refused, at first and at most
SPREAD = 0.1  # of a Retry-After is added at most, so that jobs do not come back together
REOPEN_S = 4.0  # after a cool-down the requests come back over as long as it took, or so long


@dataclass
class Limiter:
    """`ceiling`: requests at most, of all jobs together. Times in seconds of one monotonic clock."""

    ceiling: int
    limit: float = START
    slow_start: bool = True  # the limit doubles per round until the first cut
    ready_at: float = float("-inf")  # no request starts before
    cuts: int = 0
    random: random.Random = field(default_factory=random.Random, repr=False)
    _refused: float = 0.0  # share of what was sent lately
    _failed: float = 0.0
    _cut_at: float = float("-inf")
    _heard_at: float = float("-inf")  # refusals of what was sent before are answered already
    _round_at: float = float("-inf")
    _used: bool = False  # the limit was in use in this round
    _clean: int = 0  # rounds since the last cut
    _storms: int = 0  # cuts in a row while most was refused
    _reopen_s: float = 0.0

    def __post_init__(self) -> None:
        self.limit = min(self.limit, float(self.ceiling))

    def share(self, leased: int) -> int:
        """Requests that a job with `leased` slots may have under way; at least 1, else the limit could never grow."""
        return min(leased, max(1, int(self.limit * leased / self.ceiling)))

    def allowed(self, now: float, leased: int) -> int:
        """The same, now: 0 in a cool-down."""
        return 0 if now < self.ready_at else self.share(leased)

    def interval(self, now: float, leased: int) -> float:
        """Least seconds between two starts now: after a cool-down the herd comes back one by one."""
        return self._reopen_s / self.share(leased) if self.ready_at <= now < self.ready_at + self._reopen_s else 0.0

    def start(self) -> None:
        """A request goes out. Shares are of what was sent: answers come a minute later than refusals."""
        self._refused *= 1 - MEMORY
        self._failed *= 1 - MEMORY

    def success(self, busy: int, leased: int) -> None:
        """A request was answered; `busy` are under way, itself included. Quick answers shorten the slow start."""
        if self.slow_start and self._in_use(busy, leased):
            self.limit = min(float(self.ceiling), self.limit + self.ceiling / max(leased, 1))

    def tick(self, now: float, busy: int, leased: int) -> None:
        """Let time pass; to be called a few times a second. Grows the limit at the end of a clean round."""
        if now < self.ready_at or leased <= 0:
            self._round_at, self._used = now, False
            return
        self._used = self._used or self._in_use(busy, leased)
        if now - self._round_at < ROUND_S:
            return
        if self._used and now - self._cut_at >= ROUND_S:
            self._grow()
        self._round_at, self._used = now, False

    def _grow(self) -> None:
        factor = 1.0 if self.slow_start else min(1.0, GROWTH * 2 ** (self._clean // PATIENCE))
        self._clean += 1
        self._storms = 0
        self.limit = min(float(self.ceiling), self.limit + max(1.0, self.limit * factor))

    def _in_use(self, busy: int, leased: int) -> bool:
        return busy >= SATURATED * self.share(leased)

    def failure(self, now: float, sent_at: float, busy: int, leased: int) -> None:
        """A request failed and nobody said whose fault it was. When most do, the gateway has too much: a dead one is
        asked ever more seldom. Single ones leave the limit as it is."""
        self._failed = min(1.0, self._failed + MEMORY)
        if self._failed > MOSTLY:
            self.overload(now, None, sent_at, busy, leased)

    def overload(self, now: float, retry_after: float | None, sent_at: float, busy: int, leased: int) -> None:
        """The gateway said that it is too much, to a request sent at `sent_at`: everybody waits.

        The cut is taken from what was under way: a limit that was never filled proves nothing.
        """
        self._refused = min(1.0, self._refused + MEMORY)
        if self._refused > TOLERATED and sent_at > self._cut_at and now - self._cut_at >= ROUND_S:
            used = busy * self.ceiling / max(leased, 1)
            self.limit = max(1.0, min(self.limit, used) * max(CUT, 1 - self._refused / 2))
            self.slow_start, self._clean, self._cut_at = False, 0, now
            self.cuts += 1
            self._storms = self._storms + 1 if self._refused > MOSTLY else 0
        if retry_after is not None:
            self._cool(now, retry_after + self.random.uniform(0.0, SPREAD * retry_after))
        elif sent_at > self._heard_at:
            longest = min(COOL_MAX_S, self._refused * COOL_S * 2**self._storms)
            self._cool(now, self.random.uniform(0.0, longest))

    def _cool(self, now: float, seconds: float) -> None:
        """One cool-down for all. What is under way was sent before it, and its refusals call for no other one."""
        if now + seconds > self.ready_at:
            self.ready_at, self._reopen_s = now + seconds, min(REOPEN_S, seconds)
        self._heard_at = max(self._heard_at, self.ready_at)
