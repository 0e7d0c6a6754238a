"""Admission: may this request be sent, and is there money for it? One transaction decides and reserves."""

from __future__ import annotations

import sqlite3
import time

from eyrie.vault.ledger import BY_IDENTITY, answer_of, compress, current, decompress, supersede
from eyrie.vault.records import DATA, Admission, Answer, Decision, Limits, Wanted


def admit(connection: sqlite3.Connection, job: int, wanted: Wanted, limits: Limits) -> Admission:
    """Decide on one request; on SEND it is journalled as sent with its reservation.

    Decision and reservation are one transaction, over all processes that share the vault: for the run, the account
    and the dataset, settled + unknown + reserved + the worst case of this request <= budget.

    What is billed can pass the budget by the overrun alone: the sum over the attempts under way, and over those whose
    process was killed, of (worst case - reservation), less the same of the last one admitted. With worst-case
    reservation (`reserve` = `worst`) the overrun is 0. With less it is only reached if every one of these answers runs
    to its limit; the sum of many answers of a dataset stays below the sum of a high quantile of their costs.
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
    if (wait := _still_answered(connection, wanted)) > 0:
        return Admission(Decision.EARLY, wait_s=wait)
    run, account = connection.execute("SELECT run, account FROM jobs WHERE id = ?", (job,)).fetchone()
    refusal = _refusal(connection, run, account, wanted, limits)
    if refusal is not None:
        return refusal
    return _send(connection, job, run, account, wanted)


def _still_answered(connection: sqlite3.Connection, wanted: Wanted) -> float:
    """Seconds for which a lost attempt may still be being answered. The provider goes on and bills; the response
    cache then gives the answer back free, but it holds whole answers only and does not join twins under way."""
    if wanted.at_worst == 0 or wanted.answer_s <= 0:
        return 0.0
    query = f"SELECT max(sent_at) FROM journal WHERE {BY_IDENTITY} AND state = 'unknown' AND fingerprint = ?"
    (sent_at,) = connection.execute(query, (*wanted.identity.values, wanted.fingerprint)).fetchone()
    return 0.0 if sent_at is None else min(wanted.answer_s, sent_at + wanted.answer_s - time.time())


def _twin(connection: sqlite3.Connection, wanted: Wanted) -> sqlite3.Row | None:
    return connection.execute(
        "SELECT * FROM answers WHERE model = ? AND fingerprint = ? AND repetition = ? AND superseded = 0 "
        f"AND verdict IN {DATA} ORDER BY id LIMIT 1",
        (wanted.identity.model, wanted.fingerprint, wanted.identity.repetition),
    ).fetchone()


def _share(connection: sqlite3.Connection, wanted: Wanted, twin: sqlite3.Row) -> Answer:
    """Give `wanted` the answer that an identical request of another row was given."""
    supersede(connection, wanted.identity)
    connection.execute(
        "INSERT INTO answers SELECT NULL, model, ?, ?, ?, repetition, fingerprint, verdict, reply, finish_reason, "
        "provider, served_model, generation_id, prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens, "
        "0, NULL, coalesce(shared_from, id), 0, ? FROM answers WHERE id = ?",
        (wanted.identity.dataset, wanted.identity.row, wanted.identity.turn, time.time(), twin["id"]),
    )
    row = current(connection, wanted.identity)
    assert row is not None
    return answer_of(row)


def _refusal(
    connection: sqlite3.Connection, run: str, account: str, wanted: Wanted, limits: Limits
) -> Admission | None:
    """WAIT when requests under way hold the money, OVER when it is gone for good. What is free needs no money."""
    if wanted.at_worst == 0:
        return None
    dataset = wanted.identity.dataset
    checks: tuple[tuple[str, int | None, str, tuple[str, ...]], ...] = (
        ("run", limits.run, "run = ?", (run,)),
        ("account", limits.account, "account = ?", (account,)),
        ("dataset", limits.dataset, "run = ? AND dataset = ?", (run, dataset)),
    )
    for scope, budget, where, values in checks:
        if budget is None:
            continue
        query = f"SELECT total(settled), total(unknown), total(reserved) FROM totals WHERE {where}"
        settled, unknown, reserved = (int(x) for x in connection.execute(query, values).fetchone())
        needed = settled + unknown + wanted.at_worst - budget
        if needed > 0:
            return Admission(Decision.OVER, scope=scope, needed=needed, unknown=unknown)
        if needed + reserved > 0:
            return Admission(Decision.WAIT, scope=scope)
    return None


def _send(connection: sqlite3.Connection, job: int, run: str, account: str, wanted: Wanted) -> Admission:
    attempts, faults = connection.execute(
        f"SELECT count(*), total(blame = 'row' AND fingerprint = ?) FROM journal WHERE {BY_IDENTITY}",
        (wanted.fingerprint, *wanted.identity.values),
    ).fetchone()
    lost = connection.execute(
        f"SELECT id, generation_id, body, state FROM journal WHERE {BY_IDENTITY} AND state IN ('unknown', 'failed') "
        "AND (state = 'unknown' OR body IS NOT NULL) AND fingerprint = ? ORDER BY id",
        (*wanted.identity.values, wanted.fingerprint),
    ).fetchall()
    stored = next((row["body"] for row in reversed(lost) if row["body"] is not None), None)
    body = decompress(stored) or wanted.body  # byte-identical, so that the response cache can know it
    cursor = connection.execute(
        "INSERT INTO journal (job, run, account, model, dataset, row, turn, repetition, attempt, fingerprint, state, "
        "reserved, worst, body, sent_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'sent', ?, ?, ?, ?)",
        (job, run, account, *wanted.identity.values, attempts + 1, wanted.fingerprint, wanted.reserve,
         wanted.at_worst, compress(body) if wanted.at_worst else None, time.time()),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    unknown = tuple((row["id"], row["generation_id"]) for row in lost if row["state"] == "unknown")
    return Admission(Decision.SEND, entry=cursor.lastrowid, body=body, faults=int(faults), lost=unknown)
