"""What the vault already holds of a dataset, and of the money: read beside running jobs, never written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from eyrie.vault.money import MICRO
from eyrie.vault.opening import FILE_NAME
from eyrie.vault.reader import Reader
from eyrie.vault.records import DATA


@dataclass
class History:
    """A dataset's answers that can be used."""

    answers: int = 0
    tokens: int = 0  # output
    prompt_tokens: int = 0
    by_row: dict[tuple[str, int], int] = field(default_factory=dict)  # (row, repetition) -> output tokens
    rejected: set[tuple[str, int]] = field(default_factory=set)  # rows that were given up
    marks: dict[tuple[str, int], str] = field(default_factory=dict)  # (row, repetition) -> first request's fingerprint

    def held(self, rows: Iterable[tuple[str, int]] | None) -> tuple[int, int]:
        """(output tokens, conversations) in hand of `rows`; all that there is when the rows are not known yet."""
        if rows is None:
            return self.tokens, len(self.by_row)
        found = [self.by_row.get(row, 0) for row in rows if row in self.by_row or row in self.rejected]
        return sum(found), len(found)

    def forget(self, changed: Callable[[tuple[str, int]], bool]) -> int:
        """Leave out the rows that are to be bought again; returns how many there are."""
        gone = [row for row in self.by_row if changed(row)]
        for row in gone:
            self.tokens -= self.by_row.pop(row)
        return len(gone)


class Books:
    """The vault in `folder`, opened read-only; without one, nothing is held. Use as a context manager.

    Raises InputError or MissingError when there is a file that cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._reader: Reader | None = None

    def __enter__(self) -> Books:
        path = self.folder / FILE_NAME
        if path.exists() and path.stat().st_size:
            self._reader = Reader(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def _rows(self, query: str, values: Sequence[Any]) -> list[sqlite3.Row]:
        return [] if self._reader is None else self._reader.query(query, values)

    def history(self, model: str, dataset: str, *, drop_cut: bool, marks: bool = False) -> History:
        """What is held of a dataset; answers cut at their limit are no data when `drop_cut`. `marks`: with their
        fingerprints, which stand beside the replies on disk and take longer to read than everything else."""
        found = History()
        good = [verdict for verdict in DATA if not (drop_cut and verdict == "length")]
        for row in self._rows(
            f"SELECT row, turn, repetition, verdict, prompt_tokens, completion_tokens{', fingerprint' * marks} "
            "FROM answers WHERE superseded = 0 AND model = ? AND dataset = ?",
            (model, dataset),
        ):
            key = (row["row"], row["repetition"])
            if marks and row["turn"] == 0:
                found.marks[key] = row["fingerprint"]
            if row["verdict"] not in good:
                if row["turn"] == 0:
                    found.rejected.add(key)
                continue
            found.answers += 1
            found.tokens += row["completion_tokens"]
            found.prompt_tokens += row["prompt_tokens"]
            found.by_row[key] = found.by_row.get(key, 0) + row["completion_tokens"]
        return found

    def gone(self, **of: str) -> Decimal:
        """Dollars that count against a budget: settled, under way and unknown, of a run=, account= or dataset=."""
        where = " AND ".join(f"{name} = ?" for name in of)
        rows = self._rows(f"SELECT total(settled + reserved + unknown) FROM totals WHERE {where}", tuple(of.values()))
        return Decimal(int(rows[0][0])) / MICRO if rows else Decimal(0)
