"""kill -9 at random moments, with faults on: nothing stored is asked for again, every bill is explained, same bytes.

KILLS processes are killed, each at a moment drawn evenly from its first LIFE_S seconds, so that some die while they
open the vault, some with answers under way or half committed, some while they write the output. When a dataset is
finished before KILLS are spent the next one begins, in the same vault. `EYRIE_KILLS` sets the number.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.vault.ledger import decompress
from tests.gateway_double import Double
from tests.gateway_double.answers import digest
from tests.generate.forks import Forks
from tests.generate.job import Job, prompt

KILLS = int(os.environ.get("EYRIE_KILLS", "200"))
LIFE_S = 0.5
ROWS = 300
FAULTS = {name: 0.015 for name in (
    "429", "500", "503", "524_billed", "html", "empty", "inband", "inband_partial", "cut", "drop", "blank",
    "wrong_provider", "no_usage", "slow", "reset",
)}  # fmt: skip


def make_job(folder: Path, double: Double, dataset: int) -> Job:
    job = Job(folder, double, rows=0, name=f"part{dataset}")
    job.rows = [prompt(i, f"part {dataset}, question {i}") for i in range(ROWS)]
    job.runtime.update(max_attempts=50, in_flight=48, patience_s=60.0)
    return job


def text_of(job: Job) -> bytes:
    """The output with the ordinals taken off the generation ids: an answer that was under way at a kill may have to be
    generated again, and then has an id of its own. All else must be the same to the byte."""
    from eyrie.files import canonical_json

    return b"\n".join(re.sub(r'(gen-[0-9a-f]{20})-\d+"', r'\1"', canonical_json(row)).encode() for row in job.read())


def stored_ids(job: Job) -> set[str]:
    """Generation ids of the answers that the vault holds now."""
    path = job.vault / "vault.sqlite"
    if not path.exists():
        return set()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone():
            return set()  # killed while it made the vault
        query = "SELECT generation_id FROM answers WHERE generation_id IS NOT NULL AND reply IS NOT NULL"
        return {row[0] for row in connection.execute(query)}


@pytest.fixture(scope="module")
def forks():
    with Forks() as running:
        yield running


def test_kill_nine_at_random_moments_pays_nothing_twice_and_ends_with_the_same_bytes(
    tmp_path: Path, forks: Forks, monkeypatch
) -> None:
    dice = random.Random(11)
    with Double(latency=[0.01, 0.12], slow=0.3, retry_after=0.02, rates=FAULTS) as double:
        kills, dataset, exits = 0, 0, Counter[int]()
        known: list[tuple[int, set[str]]] = []  # (requests that had come, ids that were stored) after each kill
        finished: list[Job] = []
        job = make_job(tmp_path / "wild", double, dataset)
        arguments = job.arguments()
        while kills < KILLS:
            pid = forks.start(arguments, tmp_path / "stderr.txt")
            time.sleep(dice.uniform(0, LIFE_S))
            os.kill(pid, signal.SIGKILL)
            code = forks.wait(pid)
            exits[code] += 1
            assert code in (0, -signal.SIGKILL), (tmp_path / "stderr.txt").read_text()
            if code == 0:  # it was done before it could be killed
                finished.append(job)
                dataset += 1
                job = make_job(tmp_path / "wild", double, dataset)
                arguments = job.arguments()
            else:
                kills += 1
                known.append((double.brief()["requests"], stored_ids(job)))
        assert forks.wait(forks.start(arguments, tmp_path / "stderr.txt")) == 0, (tmp_path / "stderr.txt").read_text()
        finished.append(job)
        while double.brief()["in_flight"]:
            time.sleep(0.05)
        state = double.state()
        nothing_stored_is_asked_for_again(state, known)
        every_bill_is_explained(job, state)
        assert exits[-signal.SIGKILL] == KILLS
    with Double(latency=[0, 0.01]) as calm:
        for disturbed in finished:
            undisturbed = make_job(tmp_path / "calm", calm, int(disturbed.name.removeprefix("part")))
            assert forks.wait(forks.start(undisturbed.arguments(), tmp_path / "stderr.txt")) == 0
            assert text_of(disturbed) == text_of(undisturbed)
            assert disturbed.facts()["rows"] == undisturbed.facts()["rows"]


def nothing_stored_is_asked_for_again(state: dict, known: list[tuple[int, set[str]]]) -> None:
    """After a kill, no request comes (let alone is billed) whose answer the vault held at that kill."""
    bodies = {entry["id"]: entry["digest"] for entry in state["ledger"]}
    first: dict[str, int] = {}  # digest -> requests that had come when its answer was first seen to be stored
    for came, ids in known:
        for generation_id in ids:
            if generation_id in bodies:
                first.setdefault(bodies[generation_id], came)
    late = [mark for at, mark in enumerate(state["arrivals"]) if at >= first.get(mark, len(state["arrivals"]))]
    assert first and not late, f"{len(late)} requests came for answers that were stored already"


def every_bill_is_explained(job: Job, state: dict) -> None:
    """Each bill is settled in the journal to the last digit, or an attempt of the same request holds its worst case."""
    with job.open_vault() as vault:
        assert vault.check() == []
        rows = list(vault._rows("SELECT state, generation_id, billed, reserved, body FROM journal"))
        books = vault.committed()
    settled = {row["generation_id"]: Decimal(row["billed"]) for row in rows if row["billed"] is not None}
    lost: dict[str, list[int]] = {}
    for row in rows:
        assert row["state"] in ("done", "failed", "unknown")
        if row["state"] == "unknown":
            lost.setdefault(digest(decompress(row["body"])), []).append(row["reserved"])
    for entry in state["ledger"]:
        cost = Decimal(entry["cost"])
        if entry["id"] in settled:
            assert settled[entry["id"]] == cost, entry
        elif cost:
            held = lost.get(entry["digest"])
            assert held and held.pop() >= cost * 1_000_000, f"a bill that nobody knows of: {entry}"
    assert books["reserved"] == 0
    assert books["settled"] + books["unknown"] >= Decimal(state["billed"]) * 1_000_000
