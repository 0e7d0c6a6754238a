"""Compare the journal with the gateway's own figure of what the key has used, and settle what was lost by it.

The gateway tells one number, the dollars that the key has used since it was made. A *reading* puts it beside what the
journal had booked at the same moment. Between two readings

    rise of the gateway's figure = rise of the journal's + what unknown attempts were billed + other users of the key

so where a reading was made while nothing was under way, nothing was unknown, and nothing had been for so long that the
figure had caught up (`settled`), the next such reading tells the sum that the attempts lost since then were billed. It
is booked on them in proportion to their worst cases, as `failed`: lost at the provider, at a known cost, often 0.
Other users of the key make the sum too high, never too low, so the budget stays safe; when it is more than the worst
cases of all that is unknown, somebody else did use the key, and everything stays as it is.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal

from eyrie.vault.leases import process_of
from eyrie.vault.money import MICRO, microdollars
from eyrie.vault.process import Beat, Process

TOLERANCE = Decimal("0.01")  # dollars by which two figures may differ without a word
_GRAIN = Decimal("0.000000000001")  # dollars; the finest that a price list goes
LOST_AT_PROVIDER = "lost at the provider; its part of what the key's usage rose by"


@dataclass(frozen=True)
class Reading:
    """The gateway's figure and the journal's, in dollars, at one moment."""

    usage: Decimal
    billed: Decimal
    unknown: int  # attempts of unknown cost
    settled: bool  # nothing was under way, nor had been for long enough


@dataclass(frozen=True)
class Difference:
    """What happened between a settled reading and now, in dollars. `held`: worst cases of unknown attempts."""

    rise: Decimal
    booked: Decimal
    held: Decimal

    @property
    def gap(self) -> Decimal:
        """What the gateway billed beyond what the journal knows."""
        return self.rise - self.booked

    @property
    def explained(self) -> bool:
        """Whether the gap is what the unknown attempts may have cost."""
        return -TOLERANCE <= self.gap <= self.held + TOLERANCE


def at_rest(connection: sqlite3.Connection, account: str, job: int, me: Process, lag_s: float) -> bool:
    """Whether `job` is alone on its account, with nothing under way, and nobody else was there for `lag_s` seconds."""
    if connection.execute("SELECT 1 FROM journal WHERE account = ? AND state = 'sent' LIMIT 1", (account,)).fetchone():
        return False
    now = Beat.now()
    for row in connection.execute("SELECT * FROM jobs WHERE account = ? AND id <> ?", (account, job)):
        process, last = process_of(row)
        if not row["ended"] or process.silent_s(last, now, me) < lag_s:
            return False
    return True


def begin(
    connection: sqlite3.Connection, account: str, job: int, key_mark: str, me: Process, lag_s: float
) -> int | None:
    """Announce a reading when the account is at rest: jobs that start meanwhile wait for it (`pending`), so that it
    stays true. Returns its number, None when there is nothing to read now."""
    if not at_rest(connection, account, job, me, lag_s):
        return None
    cursor = connection.execute(
        "INSERT INTO readings (account, job, key_mark, at) VALUES (?, ?, ?, ?)", (account, job, key_mark, time.time())
    )
    return cursor.lastrowid


def pending(connection: sqlite3.Connection, account: str, job: int) -> bool:
    """Whether another living job is reading the gateway's figure right now."""
    query = (
        "SELECT 1 FROM readings JOIN jobs ON jobs.id = readings.job "
        "WHERE readings.account = ? AND usage IS NULL AND jobs.ended = 0 AND jobs.id <> ?"
    )
    return connection.execute(query, (account, job)).fetchone() is not None


def give_up(connection: sqlite3.Connection, reading: int) -> None:
    """The gateway did not tell its figure."""
    connection.execute("DELETE FROM readings WHERE id = ?", (reading,))


def complete(connection: sqlite3.Connection, reading: int, usage: Decimal) -> tuple[Difference | None, int]:
    """Enter the gateway's figure into the announced `reading` and settle by it what was lost.

    Returns the difference to the last settled reading of this key without unknown attempts (None when there is none),
    and how many attempts it settled.
    """
    account, key_mark = connection.execute("SELECT account, key_mark FROM readings WHERE id = ?", (reading,)).fetchone()
    difference = compare(connection, account, key_mark, usage)
    settled = 0
    if difference is not None and difference.explained:
        settled = _settle(connection, account, difference.gap, reading)
    billed, unknown = billed_by(connection, account), _unknown(connection, account)
    connection.execute(
        "UPDATE readings SET usage = ?, billed = ?, unknown = ?, settled = 1 WHERE id = ?",
        (format(usage, "f"), format(billed, "f"), len(unknown), reading),
    )
    return difference, settled


def compare(connection: sqlite3.Connection, account: str, key_mark: str, usage: Decimal) -> Difference | None:
    """What the journal and the gateway say of the time since the last settled reading without unknown attempts."""
    base = connection.execute(
        "SELECT usage, billed FROM readings WHERE account = ? AND key_mark = ? AND settled AND unknown = 0 "
        "ORDER BY id DESC LIMIT 1",
        (account, key_mark),
    ).fetchone()
    if base is None:
        return None
    held = sum(row["held"] for row in _unknown(connection, account)) / MICRO
    booked = billed_by(connection, account) - Decimal(base["billed"])
    return Difference(usage - Decimal(base["usage"]), booked, held)


def billed_by(connection: sqlite3.Connection, account: str) -> Decimal:
    """Exact dollars that the journal holds for an account."""
    rows = connection.execute("SELECT billed FROM journal WHERE account = ? AND cost > 0", (account,))
    return sum((Decimal(row[0]) for row in rows), Decimal(0))


def _unknown(connection: sqlite3.Connection, account: str) -> list[sqlite3.Row]:
    query = "SELECT id, max(worst, reserved) AS held FROM journal WHERE account = ? AND state = 'unknown' ORDER BY id"
    return connection.execute(query, (account,)).fetchall()


def _settle(connection: sqlite3.Connection, account: str, gap: Decimal, reading: int) -> int:
    """Book `gap` dollars on the unknown attempts in proportion to their worst cases; what rounding leaves falls on
    the last."""
    lost = _unknown(connection, account)
    whole = sum(row["held"] for row in lost)
    total = left = max(gap, Decimal(0))
    for number, row in enumerate(lost, 1):
        part = left if number == len(lost) else (total * row["held"] / whole).quantize(_GRAIN, ROUND_DOWN)
        left -= part
        _book(connection, row["id"], part, f"{LOST_AT_PROVIDER}, by reading {reading}")
    return len(lost)


def _book(connection: sqlite3.Connection, entry: int, part: Decimal, error: str) -> None:
    connection.execute(
        "UPDATE journal SET state = 'failed', cost = ?, billed = ?, settled_at = ?, error = ? WHERE id = ?",
        (microdollars(part), format(part, "f"), time.time(), error, entry),
    )


def rebalance(connection: sqlite3.Connection, entry: int, cost: Decimal) -> None:
    """A request that a reading settled turns out to have cost `cost` dollars: its share's surplus or lack goes to the
    others of that reading, whose sum the gateway told. Call it before the entry is closed anew."""
    mine = connection.execute("SELECT account, billed, error FROM journal WHERE id = ?", (entry,)).fetchone()
    if not (mine["error"] or "").startswith(LOST_AT_PROVIDER):
        return
    surplus = Decimal(mine["billed"]) - cost
    others = connection.execute(
        "SELECT id, billed FROM journal WHERE account = ? AND state = 'failed' AND error = ? AND id <> ? ORDER BY id",
        (mine["account"], mine["error"], entry),
    ).fetchall()
    for row in others:
        part = max(Decimal(row["billed"]) + surplus, Decimal(0))
        surplus -= part - Decimal(row["billed"])
        _book(connection, row["id"], part, mine["error"])
