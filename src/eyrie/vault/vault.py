"""The vault as a job sees it: opened to write, bought through, and read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from eyrie.vault import admission, leases
from eyrie.vault.opening import FILE_NAME, connect, free_bytes
from eyrie.vault.process import Process
from eyrie.vault.reader import Reader
from eyrie.vault.records import Admission, Limits, Wanted
from eyrie.vault.writer import Operation, Writer


class Vault(Reader):
    """One process's access to the vault in `folder`, which it makes when there is none. Use as a context manager.

    Writes go through the group-commit thread and return when they are on disk; reads use a connection of their own.
    Raises InputError or MissingError (see `opening.connect`) when the file cannot be used.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE_NAME
        self.process = Process.current()
        self._writer = Writer(folder)
        self._reader = connect(folder)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def free_bytes(self) -> int:
        """Bytes that are left on the vault's disk."""
        return free_bytes(self.path.parent)

    def write(self, operation: Operation) -> Any:
        """Run `operation` in a transaction and wait until it is on disk."""
        return self._writer.submit(operation).result()

    async def commit(self, operation: Operation) -> Any:
        """`write` for trio: not cancellable, since a half-known journal would be worse than a short wait."""
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        future = self._writer.submit(operation)
        future.add_done_callback(lambda _: token.run_sync_soon(done.set))
        with trio.CancelScope(shield=True):
            await done.wait()
        return future.result()

    def register(self, run: str, account: str, dataset: str) -> int:
        """Enter this process as a job, after burying the dead ones. Returns the job's number."""
        return self.write(lambda c: leases.register(c, run, account, dataset, self.process))

    async def renew(self, job: int, *, wanted: int, busy: int, in_flight: int) -> int:
        """Heartbeat; returns the slots that `job` may use now (`leases.renew`)."""
        return await self.commit(
            lambda c: leases.renew(c, job, self.process, wanted=wanted, busy=busy, in_flight=in_flight)
        )

    def end(self, job: int) -> None:
        """Give back the job's slots; what it still has under way becomes unknown."""
        self.write(lambda c: leases.end(c, job))

    async def admit(self, job: int, wanted: Wanted, limits: Limits) -> Admission:
        """Decide on a request and journal it as sent (`admission.admit`)."""
        return await self.commit(lambda c: admission.admit(c, job, wanted, limits))
