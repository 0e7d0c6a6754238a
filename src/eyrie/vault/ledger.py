"""The journal's transitions, each a function of an open transaction: admit, note, finish, fail, lose, recover.

(nothing) --admit--> sent --finish--> done
                      |--fail----> failed     (its cost known, often 0)
                      |--lose----> unknown    (its worst case stays reserved)
unknown/failed --recover--> done              (the response cache returned the lost answer)
unknown --settle--> failed                    (the gateway told the cost of what was lost)
"""

from __future__ import annotations

import sqlite3
import time
from decimal import Decimal

import zstandard

from eyrie.vault.money import microdollars
from eyrie.vault.records import DATA, Admission, Answer, Decision, Identity, Limits, Usage, Wanted

_BY_IDENTITY = "model = ? AND dataset = ? AND row = ? AND turn = ? AND repetition = ?"


def compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=6).compress(data)


def decompress(data: bytes | None) -> bytes | None:
    return None if data is None else zstandard.ZstdDecompressor().decompress(data)


def answer_of(row: sqlite3.Row) -> Answer:
    """The stored answer in a row of `answers`."""
    return Answer(
        row["fingerprint"], row["verdict"], decompress(row["reply"]),
        Usage(row["prompt_tokens"], row["completion_tokens"], row["reasoning_tokens"], row["cached_tokens"]),
        row["finish_reason"], row["provider"], row["served_model"], row["generation_id"], row["cost"],
        row["shared_from"] is not None,
    )  # fmt: skip


def current(connection: sqlite3.Connection, identity: Identity) -> sqlite3.Row | None:
    """The row of `answers` that holds today for `identity`."""
    query = f"SELECT * FROM answers WHERE {_BY_IDENTITY} AND superseded = 0"
    return connection.execute(query, identity.values).fetchone()


def admit(connection: sqlite3.Connection, job: int, wanted: Wanted, limits: Limits) -> Admission:
    """Decide on one request; on SEND it is journalled as sent with its worst case reserved.

    The budget holds because decision and reservation are one transaction: settled + unknown + reserved + this
    reservation <= budget, for the run and for the account, over all processes that share the vault.
    """
    held = current(connection, wanted.identity)
    if held is not None:
        same = held["fingerprint"] == wanted.fingerprint
        if same or (held["verdict"] in DATA and not wanted.rebuy):
            return Admission(Decision.STORED, answer=answer_of(held))
    twin = _twin(connection, wanted)
    if twin is not None:
        return Admission(Decision.STORED, answer=_share(connection, wanted, twin))
    if connection.execute(
        "SELECT 1 FROM journal WHERE fingerprint = ? AND repetition = ? AND state = 'sent' AND model = ?",
        (wanted.fingerprint, wanted.identity.repetition, wanted.identity.model),
    ).fetchone():
        return Admission(Decision.BUSY)
    run, account = connection.execute("SELECT run, account FROM jobs WHERE id = ?", (job,)).fetchone()
    refusal = _refusal(connection, run, account, wanted.reserve, limits)
    if refusal is not None:
        return refusal
    return _send(connection, job, run, account, wanted)


def _twin(connection: sqlite3.Connection, wanted: Wanted) -> sqlite3.Row | None:
    return connection.execute(
        "SELECT * FROM answers WHERE model = ? AND fingerprint = ? AND repetition = ? AND superseded = 0 "
        f"AND verdict IN {DATA} ORDER BY id LIMIT 1",
        (wanted.identity.model, wanted.fingerprint, wanted.identity.repetition),
    ).fetchone()


def _share(connection: sqlite3.Connection, wanted: Wanted, twin: sqlite3.Row) -> Answer:
    """Give `wanted` the answer that an identical request of another row was given."""
    _supersede(connection, wanted.identity)
    connection.execute(
        "INSERT INTO answers SELECT NULL, model, ?, ?, ?, repetition, fingerprint, verdict, reply, finish_reason, "
        "provider, served_model, generation_id, prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens, "
        "0, NULL, coalesce(shared_from, id), 0, ? FROM answers WHERE id = ?",
        (wanted.identity.dataset, wanted.identity.row, wanted.identity.turn, time.time(), twin["id"]),
    )
    row = current(connection, wanted.identity)
    assert row is not None
    return answer_of(row)


def _supersede(connection: sqlite3.Connection, identity: Identity) -> None:
    connection.execute(f"UPDATE answers SET superseded = 1 WHERE {_BY_IDENTITY} AND superseded = 0", identity.values)


def _refusal(connection: sqlite3.Connection, run: str, account: str, reserve: int, limits: Limits) -> Admission | None:
    """WAIT when requests under way hold the money, OVER when it is gone for good."""
    checks = [("run = ?", run, limits.run)]
    if limits.account is not None:
        checks.append(("account = ?", account, limits.account))
    for where, value, budget in checks:
        query = f"SELECT total(settled + unknown), total(reserved) FROM totals WHERE {where}"
        gone, reserved = (int(x) for x in connection.execute(query, (value,)).fetchone())
        if gone + reserve > budget:
            return Admission(Decision.OVER, needed=gone + reserve - budget)
        if gone + reserved + reserve > budget:
            return Admission(Decision.WAIT)
    return None


def _send(connection: sqlite3.Connection, job: int, run: str, account: str, wanted: Wanted) -> Admission:
    attempts, faults = connection.execute(
        f"SELECT count(*), total(blame = 'row' AND fingerprint = ?) FROM journal WHERE {_BY_IDENTITY}",
        (wanted.fingerprint, *wanted.identity.values),
    ).fetchone()
    unknown = connection.execute(
        f"SELECT id, generation_id, body FROM journal WHERE {_BY_IDENTITY} AND state = 'unknown' "
        "AND fingerprint = ? ORDER BY id",
        (*wanted.identity.values, wanted.fingerprint),
    ).fetchall()
    stored = next((row["body"] for row in reversed(unknown) if row["body"] is not None), None)
    body = decompress(stored) or wanted.body  # byte-identical, so that the response cache can know it
    cursor = connection.execute(
        "INSERT INTO journal (job, run, account, model, dataset, row, turn, repetition, attempt, fingerprint, state, "
        "reserved, body, sent_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'sent', ?, ?, ?)",
        (job, run, account, *wanted.identity.values, attempts + 1, wanted.fingerprint, wanted.reserve,
         compress(body) if wanted.reserve else None, time.time()),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    lost = tuple((row["id"], row["generation_id"]) for row in unknown)
    return Admission(Decision.SEND, entry=cursor.lastrowid, body=body, faults=int(faults), lost=lost)


def note(connection: sqlite3.Connection, entry: int, generation_id: str) -> None:
    """Keep the generation id of a request under way: with it, a lost reply can be settled."""
    connection.execute("UPDATE journal SET generation_id = ? WHERE id = ?", (generation_id, entry))


def _close(connection: sqlite3.Connection, entry: int, state: str, cost: Decimal, **columns: object) -> None:
    """Settle `entry`; a column given as None keeps what it holds."""
    names = ", ".join(f"{name} = coalesce(?, {name})" for name in columns)
    connection.execute(
        f"UPDATE journal SET state = ?, cost = ?, billed = ?, body = NULL, settled_at = ?"
        f"{', ' + names if names else ''} WHERE id = ?",
        (state, microdollars(cost), format(cost, "f"), time.time(), *columns.values(), entry),
    )


def finish(connection: sqlite3.Connection, entry: int, answer: Answer, cost: Decimal, status: int = 200) -> Answer:
    """Store a usable answer and journal its request as done, in one transaction. `cost` in dollars."""
    _close(connection, entry, "done", cost, generation_id=answer.generation_id, provider=answer.provider, status=status)
    return _store(connection, entry, answer, microdollars(cost))


def _store(connection: sqlite3.Connection, entry: int, answer: Answer, cost: int) -> Answer:
    row = connection.execute("SELECT * FROM journal WHERE id = ?", (entry,)).fetchone()
    identity = Identity(row["model"], row["dataset"], row["row"], row["turn"], row["repetition"])
    _supersede(connection, identity)
    usage = answer.usage
    connection.execute(
        "INSERT INTO answers VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, 0, ?)",
        (*identity.values, row["fingerprint"], answer.verdict, None if answer.raw is None else compress(answer.raw),
         answer.finish_reason, answer.provider, answer.served_model, answer.generation_id, usage.prompt_tokens,
         usage.completion_tokens, usage.reasoning_tokens, usage.cached_tokens, cost, entry, time.time()),
    )  # fmt: skip
    stored = current(connection, identity)
    assert stored is not None
    return answer_of(stored)


def fail(
    connection: sqlite3.Connection, entry: int, cost: Decimal, blame: str, error: str, *,
    status: int | None = None, generation_id: str | None = None, provider: str | None = None,
) -> None:  # fmt: skip
    """Journal an attempt that gave no usable answer and whose cost is known (dollars)."""
    _close(connection, entry, "failed", cost, blame=blame, error=error, status=status,
           generation_id=generation_id, provider=provider)  # fmt: skip


def reject(connection: sqlite3.Connection, entry: int, answer: Answer) -> Answer:
    """Record that the row of the (closed) `entry` is given up; the reason is the answer's verdict."""
    return _store(connection, entry, answer, 0)


def lose(
    connection: sqlite3.Connection, entry: int, blame: str, error: str, *,
    status: int | None = None, generation_id: str | None = None,
) -> None:  # fmt: skip
    """Journal an attempt that may have been billed: its worst case stays reserved. A free one is simply failed."""
    connection.execute(
        "UPDATE journal SET state = iif(reserved = 0, 'failed', 'unknown'), blame = ?, error = ?, "
        "status = coalesce(?, status), generation_id = coalesce(?, generation_id) WHERE id = ?",
        (blame, error, status, generation_id, entry),
    )


def settle(connection: sqlite3.Connection, entry: int, cost: Decimal, provider: str | None = None) -> None:
    """The gateway told what a lost attempt cost (dollars)."""
    _close(connection, entry, "failed", cost, provider=provider)


def recover(
    connection: sqlite3.Connection, entry: int, answer: Answer, cost: Decimal, *, source: str, free: Decimal
) -> Answer:
    """Store an answer that the response cache returned for `entry`.

    `source` is the generation that was paid for: when it is a lost attempt of ours, that attempt becomes done at
    `cost` and carries the answer, so the vault says what an undisturbed run's would; `entry` itself cost `free`.
    """
    row = connection.execute("SELECT * FROM journal WHERE id = ?", (entry,)).fetchone()
    identity = (row["model"], row["dataset"], row["row"], row["turn"], row["repetition"])
    lost = connection.execute(
        f"SELECT id FROM journal WHERE {_BY_IDENTITY} AND state IN ('unknown', 'failed') AND id <> ? AND "
        "(generation_id = ? OR (generation_id IS NULL AND state = 'unknown')) AND fingerprint = ? "
        "ORDER BY generation_id IS NULL, id LIMIT 1",
        (*identity, entry, source, row["fingerprint"]),
    ).fetchone()
    if lost is None:  # bought by a vault that is not this one
        return finish(connection, entry, answer, free)
    _close(connection, entry, "failed", free, blame="gateway", error=f"response cache returned {source}")
    return finish(connection, lost["id"], answer, cost)
