"""Why a run ends before its work does: the first reason wins, everybody hears of it."""

from __future__ import annotations

import trio

from eyrie.errors import ExitCode, EyrieError


class Stopped(Exception):
    """Unwinds one conversation after the run was told to stop; nothing is lost, the vault resumes."""


class StopSign:
    """Set once. No request is admitted afterwards; those under way are awaited, since they are billed anyway."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self.code: ExitCode | None = None
        self.message = ""

    @property
    def called(self) -> bool:
        return self.code is not None

    def call(self, code: ExitCode, message: str) -> None:
        """Stop the run for this reason, unless there is an earlier one."""
        if self.code is None:
            self.code, self.message = code, message
            self._event.set()

    def check(self) -> None:
        """Raise Stopped when the run is to stop."""
        if self.called:
            raise Stopped(self.message)

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the stop. Raises Stopped."""
        with trio.move_on_after(seconds):
            await self._event.wait()
        self.check()

    async def wait(self) -> None:
        """Return when the run is to stop."""
        await self._event.wait()


def first_error(group: BaseExceptionGroup[BaseException]) -> EyrieError | None:
    """The first failure in `group` that has a message for the user, when all of them have."""
    ours, rest = group.split(EyrieError)
    while ours is not None and isinstance(ours, BaseExceptionGroup):
        ours = ours.exceptions[0]
    return ours if rest is None and isinstance(ours, EyrieError) else None
