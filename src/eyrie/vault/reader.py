"""What can be asked of a vault without writing to it."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyrie.vault import ledger, verify
from eyrie.vault.opening import FILE_NAME, explain
from eyrie.vault.reading import connect_to_read
from eyrie.vault.records import Answer, Identity, Word
from eyrie.vault.reservation import Attempt

PAGE = 500  # rows of one query where there may be many: no reader holds up the merging of the log for long


class Reader:
    """Reads the vault in `folder`, also beside running jobs and on a read-only disk. Use as a context manager.

    Raises InputError or MissingError (`reading.connect_to_read`) when the file cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE_NAME
        self._scratch = tempfile.TemporaryDirectory(prefix="eyrie-vault-")
        try:
            self._reader = connect_to_read(folder, self._scratch)
        except BaseException:
            self._scratch.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._scratch.cleanup()

    def query(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """All rows of a query. Raises InputError when the file is damaged."""
        try:
            return self._reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from None

    def _rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[sqlite3.Row]:
        return iter(self.query(query, values))

    def check(self) -> list[str]:
        """Problems of the file and of its books; empty when all is well (`verify.quick`)."""
        return list(verify.quick(self))

    def pages(self, columns: str, table: str, where: str = "1", values: Sequence[Any] = ()) -> Iterator[sqlite3.Row]:
        """The rows of a table in the order of their ids, `PAGE` at a time: flat memory, short transactions."""
        last = 0
        text = f"SELECT id AS page_id, {columns} FROM {table} WHERE id > ? AND ({where}) ORDER BY id LIMIT {PAGE}"
        while rows := self.query(text, (last, *values)):
            yield from rows
            last = rows[-1]["page_id"]

    # Answers ---------------------------------------------------------------------------------------------------

    def answer(self, identity: Identity) -> Answer | None:
        """The answer (or rejection) that holds for `identity`."""
        try:
            row = ledger.current(self._reader, identity)
        except sqlite3.Error as error:
            raise explain(error, self.path) from None
        return None if row is None else ledger.answer_of(row)

    def words(self, model: str, dataset: str, rows: Sequence[str]) -> dict[tuple[str, int, int], Word]:
        """(row, turn, repetition) -> what the vault says, for the answers to `rows` (at most 10,000 at once), from an
        index alone: no reply is touched."""
        query = (
            "SELECT row, turn, repetition, verdict, completion_tokens, cost, shared_from IS NOT NULL FROM answers "
            "INDEXED BY answers_words "
            f"WHERE superseded = 0 AND model = ? AND dataset = ? AND row IN ({','.join('?' * len(rows))})"
        )
        found = self.query(query, (model, dataset, *rows))
        return {(r[0], r[1], r[2]): Word(r[3], r[4], r[5], bool(r[6])) for r in found}

    def index(self, model: str, dataset: str) -> dict[tuple[str, int, int], tuple[str, int]]:
        """(row, turn, repetition) -> (verdict, completion tokens) of all a dataset's answers, without their text."""
        rows = self.query(
            "SELECT row, turn, repetition, verdict, completion_tokens FROM answers INDEXED BY answers_words "
            "WHERE superseded = 0 AND model = ? AND dataset = ?",
            (model, dataset),
        )
        return {(r[0], r[1], r[2]): (r[3], r[4]) for r in rows}

    # Money -----------------------------------------------------------------------------------------------------

    def committed(
        self, *, run: str | None = None, account: str | None = None, dataset: str | None = None
    ) -> dict[str, int]:
        """Micro-dollars settled, reserved (under way) and unknown, of what matches (None = any)."""
        given = {k: v for k, v in (("run", run), ("account", account), ("dataset", dataset)) if v is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1"
        query = f"SELECT total(settled), total(reserved), total(unknown) FROM totals WHERE {where}"
        settled, reserved, unknown = self.query(query, tuple(given.values()))[0]
        return {"settled": int(settled), "reserved": int(reserved), "unknown": int(unknown)}

    def spent(self, model: str, dataset: str) -> dict[str, Any]:
        """What a dataset's attempts cost: exact dollars billed, of them wasted, and attempts by outcome."""
        billed, wasted = Decimal(0), Decimal(0)
        attempts: dict[str, int] = {}
        for row in self.query(
            "SELECT state, billed, count(*) AS n FROM journal WHERE model = ? AND dataset = ? GROUP BY state, billed",
            (model, dataset),
        ):
            attempts[row["state"]] = attempts.get(row["state"], 0) + row["n"]
            cost = Decimal(row["billed"] or 0) * row["n"]
            billed += cost
            wasted += cost if row["state"] == "failed" else 0
        return {"billed": billed, "wasted": wasted, "attempts": dict(sorted(attempts.items()))}

    def attempts(self, model: str, dataset: str, last: int) -> list[Attempt]:
        """The `last` attempts of a dataset that may cost or did, in the order in which they were sent."""
        rows = self.query(
            "SELECT worst, iif(state IN ('sent', 'unknown'), NULL, cost) FROM journal INDEXED BY journal_dataset "
            "WHERE model = ? AND dataset = ? AND worst > 0 AND NOT (state = 'failed' AND cost = 0) "
            "ORDER BY id DESC LIMIT ?",
            (model, dataset, last),
        )
        return [Attempt(worst, cost) for worst, cost in reversed(rows)]

    def answer_seconds(self, model: str, last: int) -> list[float]:
        """Seconds from sent to stored of the `last` answers that were bought of `model`."""
        query = "SELECT settled_at - sent_at FROM journal WHERE model = ? AND state = 'done' ORDER BY id DESC LIMIT ?"
        return [row[0] for row in self.query(query, (model, last))]

    def lost(self, account: str) -> list[tuple[int, str]]:
        """(journal entry, generation id) of attempts whose cost is unknown and can be asked for."""
        query = (
            "SELECT id, generation_id FROM journal WHERE account = ? AND state = 'unknown' "
            "AND generation_id IS NOT NULL ORDER BY id"
        )
        return [(row[0], row[1]) for row in self.query(query, (account,))]
