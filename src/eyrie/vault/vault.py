"""The vault as its users see it: a job opens it, buys through it, and reads from it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from eyrie.vault import leases, ledger
from eyrie.vault.opening import FILE_NAME, connect, explain
from eyrie.vault.process import Process
from eyrie.vault.records import Admission, Answer, Identity, Limits, Wanted
from eyrie.vault.writer import Operation, Writer


class Vault:
    """One process's access to the vault in `folder`. Use as a context manager.

    Writes go through the group-commit thread and return when they are on disk; reads use a connection of their own.
    Raises InputError or MissingError (see `opening.connect`) when the file cannot be used.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE_NAME
        self.process = Process.current()
        self._writer = Writer(folder)
        self._reader = connect(folder)

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    # Writing ---------------------------------------------------------------------------------------------------

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

        def enter(connection: sqlite3.Connection) -> int:
            leases.bury(connection, self.process, time.time())
            return leases.register(connection, run, account, dataset, self.process)

        return self.write(enter)

    async def renew(self, job: int, *, wanted: int, busy: int, in_flight: int) -> int:
        """Heartbeat; returns the slots that `job` may use now (`leases.renew`)."""
        return await self.commit(
            lambda c: leases.renew(c, job, self.process, wanted=wanted, busy=busy, in_flight=in_flight)
        )

    def end(self, job: int) -> None:
        """Give back the job's slots; what it still has under way becomes unknown."""
        self.write(lambda c: leases.end(c, job))

    async def admit(self, job: int, wanted: Wanted, limits: Limits) -> Admission:
        """Decide on a request and journal it as sent (`ledger.admit`)."""
        return await self.commit(lambda c: ledger.admit(c, job, wanted, limits))

    # Reading ---------------------------------------------------------------------------------------------------

    def query(self, query: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """All rows of a query. Raises InputError when the file is damaged."""
        return list(self._rows(query, values))

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[sqlite3.Row]:
        try:
            yield from self._reader.execute(query, values)
        except sqlite3.Error as error:
            raise explain(error, self.path) from None

    def answer(self, identity: Identity) -> Answer | None:
        """The answer (or rejection) that holds for `identity`."""
        try:
            row = ledger.current(self._reader, identity)
        except sqlite3.Error as error:
            raise explain(error, self.path) from None
        return None if row is None else ledger.answer_of(row)

    def index(self, model: str, dataset: str) -> dict[tuple[str, int, int], tuple[str, int]]:
        """(row, turn, repetition) -> (verdict, completion tokens) of all a dataset's answers, without their text."""
        rows = self._rows(
            "SELECT row, turn, repetition, verdict, completion_tokens FROM answers "
            "WHERE model = ? AND dataset = ? AND superseded = 0",
            (model, dataset),
        )
        return {(r[0], r[1], r[2]): (r[3], r[4]) for r in rows}

    def committed(self, *, run: str | None = None, account: str | None = None) -> dict[str, int]:
        """Micro-dollars settled, reserved (under way) and unknown, of a run or an account (or of all)."""
        where = " AND ".join(f"{k} = ?" for k, v in (("run", run), ("account", account)) if v is not None)
        values = tuple(v for v in (run, account) if v is not None)
        query = "SELECT total(settled), total(reserved), total(unknown) FROM totals" + (
            f" WHERE {where}" if where else ""
        )
        settled, reserved, unknown = next(self._rows(query, values))
        return {"settled": int(settled), "reserved": int(reserved), "unknown": int(unknown)}

    def spent(self, model: str, dataset: str) -> dict[str, Any]:
        """What a dataset's attempts cost: exact dollars billed, of them wasted, and attempts by outcome."""
        billed, wasted = Decimal(0), Decimal(0)
        attempts: dict[str, int] = {}
        for row in self._rows(
            "SELECT state, coalesce(error, '') AS error, billed, count(*) AS n FROM journal "
            "WHERE model = ? AND dataset = ? GROUP BY state, billed",
            (model, dataset),
        ):
            attempts[row["state"]] = attempts.get(row["state"], 0) + row["n"]
            cost = Decimal(row["billed"] or 0) * row["n"]
            billed += cost
            wasted += cost if row["state"] == "failed" else 0
        return {"billed": billed, "wasted": wasted, "attempts": dict(sorted(attempts.items()))}

    def lost(self, account: str) -> list[tuple[int, str]]:
        """(journal entry, generation id) of attempts whose cost is unknown and can be asked for."""
        query = "SELECT id, generation_id FROM journal WHERE account = ? AND state = 'unknown' ORDER BY id"
        return [(row[0], row[1]) for row in self._rows(query, (account,)) if row[1]]

    def check(self) -> list[str]:
        """Problems of the file and of its books; empty when all is well."""
        found = [row[0] for row in self._rows("PRAGMA integrity_check") if row[0] != "ok"]
        found += [f"foreign key of {row[0]} row {row[1]}" for row in self._rows("PRAGMA foreign_key_check")]
        query = (
            "SELECT account, run, sum(cost) AS settled, sum((state = 'sent') * reserved) AS reserved, "
            "sum((state = 'unknown') * reserved) AS unknown FROM journal GROUP BY account, run"
        )
        for row in self._rows(query):
            booked = self.committed(run=row["run"], account=row["account"])
            if booked != {name: row[name] for name in booked}:
                found.append(f"totals of {row['account']}/{row['run']} differ from the journal")
        return found
