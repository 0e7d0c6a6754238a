"""Admission: who may send next. Lowest row first, within the lease, the limiter, and the connection ramp."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import trio

from eyrie.generate.limiter import Limiter
from eyrie.generate.stop import StopSign

RAMP_PER_S = 100.0  # new connections a second: a burst of thousands looks like an attack and stalls the loop
TICK_S = 0.05


@dataclass(order=True)
class _Waiter:
    order: tuple[int, ...]
    event: trio.Event = field(compare=False)
    slot: int = field(default=-1, compare=False)


class Gate:
    """Hands out slot numbers, the lowest free one first, so that warm connections are used again."""

    def __init__(self, limiter: Limiter, stop: StopSign) -> None:
        self.limiter, self.stop = limiter, stop
        self.leased = 0  # slots that the vault lets this job use
        self.busy = 0
        self._free: list[int] = []
        self._slots = 0  # slots ever handed out: those are warm
        self._waiting: list[_Waiter] = []
        self._ramp, self._ramp_at = 1.0, trio.current_time()

    @property
    def wanted(self) -> int:
        """Requests that could be under way now if there were slots without end."""
        return self.busy + len(self._waiting)

    async def acquire(self, order: tuple[int, ...]) -> int:
        """A slot, when it is `order`'s turn. Raises Stopped."""
        self.stop.check()
        waiter = _Waiter(order, trio.Event())
        heapq.heappush(self._waiting, waiter)
        self.serve()
        try:
            await waiter.event.wait()
        except trio.Cancelled:
            if waiter.slot >= 0:
                self.release(waiter.slot)
            raise
        if self.stop.called and waiter.slot >= 0:
            self.release(waiter.slot)
        self.stop.check()
        return waiter.slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self.busy -= 1
        heapq.heappush(self._free, slot)
        self.serve()

    def serve(self) -> None:
        """Let in whoever may go; called at every change and by `pump`."""
        if self.stop.called:
            for waiter in self._waiting:
                waiter.event.set()
            self._waiting.clear()
            return
        now = trio.current_time()
        self._ramp = min(RAMP_PER_S * TICK_S * 2, self._ramp + (now - self._ramp_at) * RAMP_PER_S)
        self._ramp_at = now
        while self._waiting and self.busy < min(self.leased, self.limiter.allowed(now)):
            slot = self._take()
            if slot is None:
                return
            waiter = heapq.heappop(self._waiting)
            waiter.slot = slot
            self.busy += 1
            waiter.event.set()

    def _take(self) -> int | None:
        if self._free:
            return heapq.heappop(self._free)
        if self._ramp < 1.0:
            return None
        self._ramp -= 1.0
        self._slots += 1
        return self._slots - 1

    async def pump(self) -> None:
        """Serve on the clock, for ramps and cool-downs that end without any event."""
        while True:
            await trio.sleep(TICK_S)
            self.serve()
