"""Rows that wait for money which requests under way hold.

Thousands of rows that asked the vault again and again would keep it busy with saying no. They sleep; each request that
ends wakes one, and one that gets its money wakes the next.
"""

from __future__ import annotations

import trio

from eyrie.generate.stop import StopSign

POLL_S = 0.2  # another process may have freed money


class Purse:
    """A queue in the order of arrival."""

    def __init__(self, stop: StopSign) -> None:
        self._stop = stop
        self._waiting = trio.lowlevel.ParkingLot()

    async def wait(self) -> None:
        """Return when it is worth to ask again. Raises Stopped."""
        self._stop.check()
        await self._waiting.park()
        self._stop.check()

    def freed(self) -> None:
        """Money may be free: let the first one ask."""
        self._waiting.unpark()

    async def pump(self) -> None:
        """Wake one row now and then, and all of them when the run stops; until cancelled."""
        while True:
            await trio.sleep(POLL_S)
            if self._stop.called:
                self._waiting.unpark_all()
            else:
                self._waiting.unpark()
