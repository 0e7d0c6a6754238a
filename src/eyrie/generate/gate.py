"""Admission: who may send next, and where to. Lowest row first, within the lease, the limiter, the breakers, and the
connection ramp."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from eyrie.gateway.clients import KEEPALIVE_S
from eyrie.gateway.errors import Blame
from eyrie.gateway.reply import Reply
from eyrie.generate.breaker import Breaker, Route
from eyrie.generate.limiter import Limiter
from eyrie.generate.stop import StopSign

RAMP_PER_S = 100.0  # new connections a second, of all jobs: a burst looks like an attack and stalls the event loop
RAMP_LEAST_PER_S = 5.0
TICK_S = 0.05


@dataclass(frozen=True)
class Pass:
    """Leave to send one request."""

    slot: int
    route: Route
    at: float  # when it was given


@dataclass(order=True)
class _Waiter:
    order: tuple[int, ...]
    event: trio.Event = field(compare=False)
    given: Pass | None = field(default=None, compare=False)
    gone: bool = field(default=False, compare=False)


class Gate:
    """Hands out slot numbers, the one used last first: its connection is the warmest."""

    def __init__(
        self, limiter: Limiter, stop: StopSign, breaker: Breaker | None = None,
        admitted: Callable[[tuple[int, ...]], None] = lambda order: None,
    ) -> None:  # fmt: skip
        self.limiter, self.stop, self.breaker = limiter, stop, breaker or Breaker()
        self._admitted = admitted  # hears of whoever is let in
        self.leased = 0  # slots that the vault lets this job use
        self.cap = sys.maxsize  # requests under way at most while a new lease is being asked for
        self.busy = 0
        self._free: list[tuple[int, float]] = []  # slot, and when it became free
        self._slots = 0  # slots ever handed out
        self._waiting: list[_Waiter] = []
        self._ramp, self._ramp_at = 1.0, trio.current_time()
        self._next_at = float("-inf")

    @property
    def wanted(self) -> int:
        """Requests that could be under way now if there were slots without end."""
        return self.busy + len(self._waiting)

    async def acquire(self, order: tuple[int, ...]) -> Pass:
        """A slot and a route, when it is `order`'s turn. Raises Stopped."""
        self.stop.check()
        waiter = _Waiter(order, trio.Event())
        heapq.heappush(self._waiting, waiter)
        self.serve()
        try:
            await waiter.event.wait()
        except trio.Cancelled:
            waiter.gone = True
            self._take_back(waiter)
            raise
        if self.stop.called:
            self._take_back(waiter)
        self.stop.check()
        assert waiter.given is not None
        return waiter.given

    def _take_back(self, waiter: _Waiter) -> None:
        if waiter.given is not None:
            self.breaker.unsent(waiter.given.route)
            self.release(waiter.given)

    def release(self, given: Pass) -> None:
        """Give a slot back."""
        self.busy -= 1
        self._free.append((given.slot, trio.current_time()))
        self.serve()

    def learn(self, reply: Reply, route: Route, sent_at: float) -> None:
        """Let the breakers and the limiter know how a request ended, before its slot goes to somebody else."""
        now, fault = trio.current_time(), reply.fault
        endpoints_own = self.breaker.judge(reply, route, sent_at, now)
        if fault is None or fault.blame in (Blame.ROW, Blame.PERMANENT):
            self.limiter.success(self.busy, self.leased)
        elif endpoints_own or fault.blame is Blame.RUN:
            return  # the breaker's matter, or the user's: others need not slow down
        elif fault.blame is Blame.OVERLOAD:
            self.limiter.overload(now, fault.retry_after, sent_at, self.busy, self.leased)
        else:
            self.limiter.failure(now, sent_at, self.busy, self.leased)

    def serve(self) -> None:
        """Let in whoever may go; called at every change and by `pump`."""
        if self.stop.called:
            for waiter in self._waiting:
                waiter.event.set()
            self._waiting.clear()
            return
        now = trio.current_time()
        self._fill_ramp(now)
        while self._waiting and self.busy < min(self.cap, self.limiter.allowed(now, self.leased)):
            if self._waiting[0].gone:
                heapq.heappop(self._waiting)
                continue
            if not (self._is_time(now) and self._is_warm(now)):
                return
            route = self.breaker.route(now)
            if route is None:
                return
            self._admit(heapq.heappop(self._waiting), route, now)

    def _admit(self, waiter: _Waiter, route: Route, now: float) -> None:
        cold = not self._free or now - self._free[-1][1] > KEEPALIVE_S
        if self._free:
            slot = self._free.pop()[0]
        else:
            slot, self._slots = self._slots, self._slots + 1
        self._ramp -= cold
        interval = self.limiter.interval(now, self.leased)
        self._next_at = max(self._next_at, now - TICK_S) + interval if interval else now
        self.busy += 1
        self.limiter.start()
        waiter.given = Pass(slot, route, now)
        waiter.event.set()
        self._admitted(waiter.order)

    def _is_time(self, now: float) -> bool:
        return not self.limiter.interval(now, self.leased) or self._next_at <= now

    def _is_warm(self, now: float) -> bool:
        """Whether the next slot has an open connection, or a new one may be opened."""
        return self._ramp >= 1.0 or (bool(self._free) and now - self._free[-1][1] <= KEEPALIVE_S)

    def _fill_ramp(self, now: float) -> None:
        rate = max(RAMP_LEAST_PER_S, RAMP_PER_S * self.leased / self.limiter.ceiling)
        self._ramp = min(max(1.0, 2 * rate * TICK_S), self._ramp + (now - self._ramp_at) * rate)
        self._ramp_at = now

    async def pump(self) -> None:
        """Serve on the clock, for ramps, cool-downs and probes that come due without any event."""
        while True:
            await trio.sleep(TICK_S)
            self.limiter.tick(trio.current_time(), self.busy, self.leased)
            self.serve()
