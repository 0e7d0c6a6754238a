"""What a dataset's journal says of its money: waste, open bills, duplicates, losses; and how long answers took.

Two of the figures are 0 unless the vault is broken, and are counted so that this shows:

- a *duplicate* is a request that was paid for although its answer was there: attempts that ended as done, beyond the
  first, with one fingerprint and repetition. Admission hands out a stored answer and lets no twin of a request under
  way go out, in one transaction, so there is none (but for a request that was changed and changed back under
  generate.on_changed_request=rebuy, which asks for it).
- a *loss* is an answer that was paid for and is not in the vault: attempts that ended as done and that no answer,
  superseded ones included, names as its own. Answer and end are written in one transaction, so there is none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Rows = Callable[[str, tuple[Any, ...]], Iterable[sqlite3.Row]]
RECOVERED = "response cache returned"  # how the journal says that an earlier attempt's answer came back free


@dataclass
class Sum:
    """Attempts and exact dollars."""

    attempts: int = 0
    dollars: Decimal = Decimal(0)

    def add(self, attempts: int, dollars: Decimal) -> None:
        self.attempts += attempts
        self.dollars += dollars


@dataclass
class Books:
    """A dataset's money beyond its answers. `unknown` holds the most that lost attempts may have cost."""

    waste: Sum = field(default_factory=Sum)  # paid for, gave no usable answer
    waste_by_reason: dict[str, Sum] = field(default_factory=dict)
    unknown: Sum = field(default_factory=Sum)
    duplicates: int = 0
    losses: int = 0


def reason_of(error: str | None) -> str:
    """The short word before the detail in the journal's `error`."""
    return (error or "unknown").partition(":")[0]


def books(rows: Rows, model: str, dataset: str) -> Books:
    """Read the books of one dataset; `rows` runs a query on the vault."""
    found = Books()
    here = (model, dataset)
    where = "model = ? AND dataset = ?"
    for row in rows(
        f"SELECT error, billed, count(*) AS n FROM journal WHERE {where} AND state = 'failed' AND cost > 0 "
        "GROUP BY error, billed ORDER BY error",
        here,
    ):
        dollars = Decimal(row["billed"] or 0) * row["n"]
        found.waste.add(row["n"], dollars)
        found.waste_by_reason.setdefault(reason_of(row["error"]), Sum()).add(row["n"], dollars)
    query = f"SELECT count(*) AS n, total(reserved) AS held FROM journal WHERE {where} AND state = 'unknown'"
    for row in rows(query, here):
        found.unknown.add(row["n"], Decimal(int(row["held"])) / 1_000_000)
    found.duplicates = _duplicates(rows, here)
    found.losses = len(_losses(rows, here))
    return found


def _duplicates(rows: Rows, here: tuple[str, str]) -> int:
    query = (
        "SELECT total(n - 1) AS extra FROM (SELECT count(*) AS n FROM journal "
        "WHERE model = ? AND dataset = ? AND state = 'done' GROUP BY fingerprint, repetition)"
    )
    return int(next(iter(rows(query, here)))["extra"])


def _losses(rows: Rows, here: tuple[str, str]) -> set[int]:
    """Ids of the journal entries that are done and whose answer is nowhere."""
    done = {r["id"] for r in rows("SELECT id FROM journal WHERE model = ? AND dataset = ? AND state = 'done'", here)}
    for superseded in (0, 1):  # what holds today is found by an index; what was bought again is rare
        if done:
            query = f"SELECT journal FROM answers WHERE superseded = {superseded} AND model = ? AND dataset = ?"
            done -= {row["journal"] for row in rows(query, here)}
    return done


def latencies(rows: Rows, model: str, dataset: str, job: int) -> dict[str, list[float]]:
    """Seconds from sent to stored of each answer that `job` bought, by provider."""
    found: dict[str, list[float]] = {}
    for row in rows(
        "SELECT coalesce(provider, 'unnamed') AS provider, settled_at - sent_at AS seconds FROM journal "
        "WHERE model = ? AND dataset = ? AND job = ? AND state = 'done'",
        (model, dataset, job),
    ):
        found.setdefault(row["provider"], []).append(max(0.0, row["seconds"]))
    return found
