"""Slots shared by the jobs of an account: each job leases its share and renews it with a heartbeat.

Work-conserving: a job that wants less than an equal share leaves the rest to the others, so eight datasets have
one tail, not eight. Safe: a job only takes what is free in the same transaction, so the leases never add up to
more than `in_flight`. Cheap: a renewal that changes nothing writes nothing (but for one heartbeat a second), so jobs
may renew as often as they like.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from eyrie.vault.process import Beat, Process

LOST = "lost with the process that sent it"
BEAT_S = 1.0  # a heartbeat is written at most so often


def fair_shares(wants: Sequence[int], total: int) -> list[int]:
    """Water-filling: equal shares of `total`, none above its want; what one leaves goes to the others.

    The remainder goes to the first ones. At least 1 for each that wants any, while there are enough.
    """
    shares, left = [0] * len(wants), total
    open_ = [i for i, want in enumerate(wants) if want > 0]
    while open_ and left > 0:
        each = max(1, left // len(open_))
        for i in list(open_):
            take = min(each, wants[i] - shares[i], left)
            shares[i] += take
            left -= take
            if shares[i] >= wants[i]:
                open_.remove(i)
    return shares


def register(connection: sqlite3.Connection, run: str, account: str, dataset: str, me: Process) -> int:
    """Bury dead jobs, then enter this process as a job without slots; returns the job's number."""
    now = Beat.now()
    bury(connection, me, now)
    cursor = connection.execute(
        "INSERT INTO jobs (run, account, dataset, machine, boot, pid, started, heartbeat, beat, wanted, slots) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)",
        (run, account, dataset, me.machine, me.boot, me.pid, me.started, now.wall, now.monotonic),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def renew(connection: sqlite3.Connection, job: int, me: Process, *, wanted: int, busy: int, in_flight: int) -> int:
    """Heartbeat of `job`: bury dead jobs, then take this job's share of `in_flight` slots and return it.

    `busy` requests under way are kept even when the share is smaller: the job shrinks as they end. A job that was
    taken for dead (it stood still in another container) lives again.
    """
    now = Beat.now()
    bury(connection, me, now, but=job)
    mine = connection.execute("SELECT account, beat, wanted, slots, ended FROM jobs WHERE id = ?", (job,)).fetchone()
    rows = connection.execute(
        "SELECT id, wanted, slots FROM jobs WHERE account = ? AND (ended = 0 OR id = ?) ORDER BY id",
        (mine["account"], job),
    ).fetchall()
    shares = fair_shares([wanted if row["id"] == job else row["wanted"] for row in rows], in_flight)
    share = next(s for s, row in zip(shares, rows, strict=True) if row["id"] == job)
    taken = sum(row["slots"] for row in rows if row["id"] != job)
    slots = max(min(share, in_flight - taken), busy, 0)
    if (wanted, slots, 0) != (mine["wanted"], mine["slots"], mine["ended"]) or now.monotonic - mine["beat"] >= BEAT_S:
        connection.execute(
            "UPDATE jobs SET heartbeat = ?, beat = ?, wanted = ?, slots = ?, ended = 0 WHERE id = ?",
            (now.wall, now.monotonic, wanted, slots, job),
        )
    return slots


def process_of(row: sqlite3.Row) -> tuple[Process, Beat]:
    """The process in a row of `jobs`, and when it was last heard of."""
    return (
        Process(row["machine"], row["boot"], row["pid"], row["started"]),
        Beat(row["heartbeat"], row["beat"]),
    )


def bury(connection: sqlite3.Connection, me: Process, now: Beat, *, but: int | None = None) -> int:
    """End the jobs (`but` one) whose process is gone; what they had under way becomes unknown (or failed when it was
    free). Returns how many requests were lost."""
    lost = 0
    for row in connection.execute("SELECT * FROM jobs WHERE ended = 0 AND id IS NOT ?", (but,)).fetchall():
        process, last = process_of(row)
        if not process.alive(last, now, me):
            lost += end(connection, row["id"])
    return lost


def end(connection: sqlite3.Connection, job: int) -> int:
    """Give back a job's slots and book what it leaves under way. Returns how many requests that is.

    A lost request keeps its reservation as it is: it was cut off at a moment that has nothing to do with its answer.
    """
    cursor = connection.execute(
        "UPDATE journal SET state = iif(worst = 0, 'failed', 'unknown'), blame = 'gateway', "
        "error = coalesce(error, ?) WHERE job = ? AND state = 'sent'",
        (LOST, job),
    )
    connection.execute("UPDATE jobs SET ended = 1, slots = 0, wanted = 0 WHERE id = ?", (job,))
    return cursor.rowcount
