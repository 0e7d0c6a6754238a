"""Kills, signals and jobs side by side: nothing billed is lost, nothing is paid twice, the bytes are the same."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyrie.errors import ExitCode
from eyrie.files import sha256_file
from tests.gateway_double import Double
from tests.generate.job import Job, prompt

ROWS = 120


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the output of an undisturbed run of ROWS rows."""
    with Double() as server:
        job = Job(tmp_path_factory.mktemp("undisturbed"), server, rows=ROWS)
        assert job.run() == 0
        return sha256_file(job.output)


@pytest.fixture
def double() -> Iterator[Double]:
    with Double(latency=[0.02, 0.15]) as server:
        yield server


def wait_for(double: Double, bills: int) -> None:
    """Until the double has billed so many requests."""
    deadline = time.monotonic() + 200
    while len(double.ledger) < bills:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kill_nine_at_random_moments_then_resume_ends_with_the_same_bytes(
    tmp_path: Path, double: Double, undisturbed: str
) -> None:
    job = Job(tmp_path, double, rows=ROWS)
    dice = random.Random(7)
    for kill in range(5):
        process = job.start()
        wait_for(double, 15 + 18 * kill)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        process.communicate()
        assert not job.output.exists()
    time.sleep(0.3)  # what was under way at the last kill is billed by now
    with job.open_vault() as vault:
        rows = list(vault._rows("SELECT state, generation_id, reserved FROM journal"))
        known = {row["generation_id"] for row in rows if row["state"] == "done"}
        open_ = [row for row in rows if row["state"] in ("sent", "unknown")]
        unexplained = [entry for entry in double.ledger if entry["id"] not in known]
        assert len(unexplained) <= len(open_)  # every billed answer is stored, or an entry holds its worst case
        assert all(row["reserved"] > 0 for row in open_)
    assert job.run() == 0
    assert sha256_file(job.output) == undisturbed
    state = double.state()
    bills: dict[str, int] = {}
    for entry in state["ledger"]:
        bills[entry["digest"]] = bills.get(entry["digest"], 0) + 1
    twice = sum(n - 1 for n in bills.values())
    with job.open_vault() as vault:
        assert vault.check() == []
        books = vault.committed()
        unknown = next(vault._rows("SELECT count(*) AS n FROM journal WHERE state = 'unknown'"))["n"]
    assert twice <= unknown  # a second bill only where the first reply was under way at a kill
    assert books["reserved"] == 0
    assert books["settled"] + books["unknown"] >= double.billed * 1_000_000


def test_one_signal_drains_what_is_under_way_and_exits_130(tmp_path: Path, double: Double, undisturbed: str) -> None:
    job = Job(tmp_path, double, rows=ROWS)
    process = job.start()
    wait_for(double, 20)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == ExitCode.INTERRUPTED and "rows are still open" in said
    assert not job.output.exists()
    stored = len(double.ledger)
    with job.open_vault() as vault:
        assert len(vault.index("maker/target", "demo")) == stored < ROWS
        assert vault.committed()["reserved"] == vault.committed()["unknown"] == 0
    assert job.run() == 0
    assert sha256_file(job.output) == undisturbed and len(double.ledger) == ROWS


def test_a_second_signal_aborts_and_the_vault_still_resumes(tmp_path: Path, undisturbed: str) -> None:
    with Double(latency=[0.0, 0.01], slow=4.0, plan=[{"match": "question 4", "fault": "slow", "times": 5}]) as double:
        job = Job(tmp_path, double, rows=ROWS)
        process = job.start()
        wait_for(double, 30)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == ExitCode.INTERRUPTED and time.monotonic() - began < 3
        with job.open_vault() as vault:
            assert vault.committed()["unknown"] > 0  # the slow ones: billed, perhaps
        time.sleep(4)
        assert job.run() == 0
        assert sha256_file(job.output) == undisturbed
        assert len(double.ledger) == ROWS and double.state()["hits"] > 0  # the lost ones came back free


def test_two_jobs_at_once_buy_each_answer_once(tmp_path: Path, double: Double, undisturbed: str) -> None:
    """The same dataset twice, and the worst case of it: both want the same rows at the same time."""
    one, two = Job(tmp_path, double, rows=ROWS), Job(tmp_path, double, rows=ROWS)
    two.name = "again"
    one.arguments()  # the inputs, once
    processes = [one.start(), two.start()]
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert len(double.ledger) == ROWS
    assert sha256_file(one.output) == sha256_file(two.output) == undisturbed


def test_jobs_side_by_side_share_the_slots(tmp_path: Path) -> None:
    with Double(latency=[0.1, 0.3]) as double:
        jobs = []
        for name in ("demo_a", "demo_b", "demo_c"):
            job = Job(tmp_path, double, name=name)
            job.rows = [prompt(i, f"{name} {i}") for i in range(60)]
            job.runtime["in_flight"] = 12
            jobs.append(job)
        processes = []
        for job in jobs:
            processes.append(job.start())
            time.sleep(0.3)
        for process in processes:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
        assert double.state()["peak"] <= 12
        assert len(double.ledger) == 180
