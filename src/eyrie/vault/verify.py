"""Prove a vault: the file is whole, the sums are the journal's, every paid answer is there and can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import zstandard

from eyrie.vault.ledger import decompress
from eyrie.vault.money import microdollars
from eyrie.vault.records import DATA

if TYPE_CHECKING:
    from eyrie.vault.reader import Reader


def quick(reader: Reader) -> Iterator[str]:
    """Problems of the file's structure and of the sums of money."""
    yield from (row[0] for row in reader.query("PRAGMA integrity_check") if row[0] != "ok")
    yield from (f"foreign key of {row[0]} row {row[1]}" for row in reader.query("PRAGMA foreign_key_check"))
    journal = reader.query(
        "SELECT account, run, dataset, sum(cost), sum((state = 'sent') * reserved), "
        "sum((state = 'unknown') * reserved) FROM journal GROUP BY account, run, dataset"
    )
    totals = reader.query("SELECT account, run, dataset, settled, reserved, unknown FROM totals")
    booked = {tuple(row)[:3]: tuple(row)[3:] for row in totals}
    for row in journal:
        if booked.pop(tuple(row)[:3], None) != tuple(row)[3:]:
            yield f"totals of {row['account']}/{row['run']}/{row['dataset']} differ from the journal"
    yield from (f"totals of {'/'.join(key)} have no journal entry" for key, sums in booked.items() if any(sums))


def thorough(reader: Reader) -> Iterator[str]:
    """`quick`, and every answer read and held against the journal. Reads the whole file, in short transactions."""
    yield from quick(reader)
    answered: set[int] = set()
    columns = (
        "answers.dataset, answers.row, answers.turn, answers.repetition, verdict, reply, journal, shared_from, "
        "answers.cost, superseded, (SELECT json_array(model, dataset, row, turn, repetition, fingerprint) = json_array("
        "answers.model, answers.dataset, answers.row, answers.turn, answers.repetition, answers.fingerprint) "
        "FROM journal WHERE journal.id = answers.journal) AS same, "
        "(SELECT state FROM journal WHERE journal.id = answers.journal) AS state, "
        "(SELECT cost FROM journal WHERE journal.id = answers.journal) AS booked"
    )
    for row in reader.pages(columns, "answers"):
        name = f"answer to {row['dataset']} row {row['row']}, turn {row['turn']}, repetition {row['repetition']}"
        yield from (f"{name}: {problem}" for problem in _answer_problems(row))
        if row["journal"] is not None:
            answered.add(row["journal"])
    for row in reader.pages("state, cost, billed, dataset, row, generation_id", "journal"):
        name = f"journal entry {row['page_id']} ({row['dataset']} row {row['row']})"
        if row["state"] == "done" and row["page_id"] not in answered:
            yield f"{name} is done, but its answer is not there"
        if row["billed"] is not None and microdollars(Decimal(row["billed"])) != row["cost"]:
            yield f"{name} books {row['cost']} micro-dollars for ${row['billed']}"
    for row in reader.query(
        "SELECT generation_id, count(*) FROM journal WHERE state = 'done' AND generation_id IS NOT NULL "
        "GROUP BY generation_id HAVING count(*) > 1"
    ):
        yield f"generation {row[0]} is booked as {row[1]} answers"


def _answer_problems(row) -> Iterator[str]:  # noqa: ANN001 - sqlite3.Row
    is_data = row["verdict"] in DATA
    if is_data:
        try:
            json.loads(decompress(row["reply"]) or b"")
        except zstandard.ZstdError as error:
            yield f"its reply is damaged ({error})"
        except ValueError as error:
            yield f"its reply is no JSON ({error})"
    if row["shared_from"] is not None:
        return
    if row["journal"] is None or row["state"] is None:
        yield "no journal entry says who paid for it"
    elif not row["same"]:
        yield "its journal entry is another request's"
    elif is_data and row["state"] != "done":
        yield f"its journal entry is {row['state']}, not done"
    elif is_data and row["cost"] != row["booked"]:
        yield f"it costs {row['cost']} micro-dollars, its journal entry {row['booked']}"
