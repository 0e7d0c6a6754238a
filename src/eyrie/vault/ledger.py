"""The journal's transitions, each a function of an open transaction: note, finish, fail, lose, recover, settle.

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

from eyrie.errors import InputError
from eyrie.vault import reconciliation
from eyrie.vault.money import microdollars
from eyrie.vault.records import Answer, Identity, Usage

BY_IDENTITY = "model = ? AND dataset = ? AND row = ? AND turn = ? AND repetition = ?"


def compress(data: bytes) -> bytes:
    """zstd with a checksum: a flipped bit is found when the reply is read, not when it is trained on."""
    return zstandard.ZstdCompressor(level=6, write_checksum=True).compress(data)


def decompress(data: bytes | None) -> bytes | None:
    """Raises zstandard.ZstdError."""
    return None if data is None else zstandard.ZstdDecompressor().decompress(data)


def answer_of(row: sqlite3.Row) -> Answer:
    """The stored answer in a row of `answers`. Raises InputError when its reply is damaged."""
    try:
        reply = decompress(row["reply"])
    except zstandard.ZstdError as error:
        raise InputError(
            f"vault: the reply to row {row['row']} of {row['dataset']}, turn {row['turn']}, is damaged ({error}); "
            "`eyrie vault --verify` lists all that are; restore a backup of the vault"
        ) from None
    return Answer(
        row["fingerprint"], row["verdict"], reply,
        Usage(row["prompt_tokens"], row["completion_tokens"], row["reasoning_tokens"], row["cached_tokens"]),
        row["finish_reason"], row["provider"], row["served_model"], row["generation_id"], row["cost"],
        row["shared_from"] is not None,
    )  # fmt: skip


def current(connection: sqlite3.Connection, identity: Identity) -> sqlite3.Row | None:
    """The row of `answers` that holds today for `identity`."""
    query = f"SELECT * FROM answers WHERE {BY_IDENTITY} AND superseded = 0"
    return connection.execute(query, identity.values).fetchone()


def supersede(connection: sqlite3.Connection, identity: Identity) -> None:
    """Mark what holds for `identity` as bought again; it is kept."""
    connection.execute(f"UPDATE answers SET superseded = 1 WHERE {BY_IDENTITY} AND superseded = 0", identity.values)


def note(connection: sqlite3.Connection, entry: int, generation_id: str) -> None:
    """Keep the generation id of a request under way: with it, a lost reply can be settled."""
    connection.execute("UPDATE journal SET generation_id = ? WHERE id = ?", (generation_id, entry))


def _close(
    connection: sqlite3.Connection, entry: int, state: str, cost: Decimal, *, body: str = "NULL", **columns: object
) -> None:
    """Settle `entry`; a column given as None keeps what it holds. `body`: what becomes of the request's bytes."""
    names = ", ".join(f"{name} = coalesce(?, {name})" for name in columns)
    connection.execute(
        f"UPDATE journal SET state = ?, cost = ?, billed = ?, body = {body}, settled_at = ?"
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
    supersede(connection, identity)
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
    """Journal an attempt that may have been billed: its worst case is reserved from now on, even where less was
    while it ran, since an answer that never came is a long one more often than not. A free one is simply failed."""
    connection.execute(
        "UPDATE journal SET state = iif(worst = 0, 'failed', 'unknown'), reserved = max(worst, reserved), "
        "blame = ?, error = ?, "
        "status = coalesce(?, status), generation_id = coalesce(?, generation_id) WHERE id = ?",
        (blame, error, status, generation_id, entry),
    )


def settle(connection: sqlite3.Connection, entry: int, cost: Decimal, provider: str | None = None) -> None:
    """The gateway told what a lost attempt cost (dollars). Its bytes are kept: sent again, they may get the answer
    from the response cache."""
    _close(connection, entry, "failed", cost, body="body", provider=provider)


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
        f"SELECT id FROM journal WHERE {BY_IDENTITY} AND state IN ('unknown', 'failed') AND id <> ? AND "
        "(generation_id = ? OR (generation_id IS NULL AND (state = 'unknown' OR error LIKE ?))) AND fingerprint = ? "
        "ORDER BY generation_id IS NULL, id LIMIT 1",
        (*identity, entry, source, f"{reconciliation.LOST_AT_PROVIDER}%", row["fingerprint"]),
    ).fetchone()
    if lost is None:  # bought by a vault that is not this one
        return finish(connection, entry, answer, free)
    reconciliation.rebalance(connection, lost["id"], cost)
    _close(connection, entry, "failed", free, blame="gateway", error=f"response cache returned {source}")
    return finish(connection, lost["id"], answer, cost)
