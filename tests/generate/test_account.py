"""The final account: what a job did and what the dataset cost, with waste, duplicates and losses counted."""

from __future__ import annotations

import signal
import time
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.errors import ExitCode
from eyrie.files import sha256_file
from eyrie.generate.account import p95
from eyrie.vault.account import books, latencies
from tests.gateway_double import Double
from tests.generate.job import Job


def account(text: str, heading: str) -> dict[str, str]:
    """The lines under a heading of the account, by their first word."""
    lines = text[text.index(heading) :].splitlines()[1:]
    found = {}
    for line in lines:
        if not line.startswith("  "):
            break
        name, _, rest = line.strip().partition("  ")
        found[name] = rest.strip()
    return found


def test_a_finished_job_accounts_for_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = [
        {"match": "question 3", "fault": "wrong_provider", "times": 1},
        {"match": "question 5", "fault": "502", "times": 2},
    ]
    with Double(latency=[0.05, 0.1], plan=plan) as double:
        job = Job(tmp_path, double, rows=20)
        assert job.run() == 0
        ledger = double.ledger
    text, facts = capsys.readouterr().err, job.facts()
    mine, whole = account(text, "demo: this job"), account(text, "demo: all jobs")
    assert mine["answers"].startswith(f"20 with {facts['tokens']['completion']:,} output tokens")
    assert mine["errors"] == "3 (provider_unavailable 2, wrong_provider 1)"
    median = float(mine["latency"].split()[1])
    assert 0.05 <= median < 5 and "p95" in mine["latency"] and "output tokens/s" in mine["speed"]
    assert sum(int(mine[name].split()[0]) for name in ("Alpha", "Beta")) == 20 and "Gamma" in mine  # per endpoint
    paid = sum(Decimal(entry["cost"]) for entry in ledger)
    assert Decimal(mine["cost"].split(",")[0].lstrip("$")) == paid.quantize(Decimal("0.000001")).normalize()
    assert whole["waste"].startswith("1 attempts, $0.000") and "wrong_provider 1" in whole["waste"]
    assert whole["duplicates"].startswith("0 ") and whole["losses"].startswith("0 ")
    assert facts["waste"]["attempts"] == 1 and facts["waste"]["dollars"] == facts["dollars"]["wasted"]
    assert list(facts["waste"]["reasons"]) == ["wrong_provider"]
    assert facts["duplicates"] == facts["losses"] == 0
    per_million = Decimal(facts["dollars"]["answers"]) / facts["tokens"]["completion"] * 1_000_000
    assert abs(Decimal(facts["dollars"]["per_million_output"]) - per_million) <= Decimal("0.0001")


def test_the_summary_is_the_same_bytes_after_a_rerun_that_sends_nothing(tmp_path: Path, capsys) -> None:
    with Double(plan=[{"match": "question 3", "fault": "wrong_provider", "times": 1}]) as double:
        job = Job(tmp_path, double)
        assert job.run() == 0
        before = sha256_file(job.summary)
        job.output.unlink(), job.summary.unlink()
        capsys.readouterr()
        assert job.run() == 0
        assert len(double.ledger) == 11
    assert sha256_file(job.summary) == before
    text = capsys.readouterr().err
    assert "demo: this job sent nothing; the vault had every answer" in text
    assert account(text, "demo: all jobs")["answers"].startswith("10 in 10 conversations")


def test_a_stopped_job_gives_its_account_too(tmp_path: Path) -> None:
    with Double(latency=[0.1, 0.4]) as double:
        job = Job(tmp_path, double, rows=200)
        process = job.start()
        deadline = time.monotonic() + 30
        while len(double.ledger) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        bought = len(double.ledger)
    assert process.returncode == ExitCode.INTERRUPTED
    assert account(said, "demo: this job")["answers"].startswith(f"{bought} with ")
    assert account(said, "demo: all jobs")["answers"].startswith(f"{bought} in {bought} conversations")


def test_a_broken_vault_shows_as_duplicates_and_losses(tmp_path: Path) -> None:
    """The two zeros are counted, not asserted: with the books broken by hand they are no zeros."""
    with Double() as double:
        job = Job(tmp_path, double)
        assert job.run() == 0
    with job.open_vault() as vault:

        def read():
            return books(vault.query, "maker/target", "demo")

        assert (read().duplicates, read().losses) == (0, 0)
        vault.write(lambda c: c.execute("UPDATE answers SET journal = NULL WHERE row = 'row-0003'"))
        assert (read().duplicates, read().losses) == (0, 1)
        vault.write(lambda c: c.execute("UPDATE journal SET fingerprint = 'one' WHERE row IN ('row-0004', 'row-0005')"))
        assert (read().duplicates, read().losses) == (1, 1)
        assert sum(map(len, latencies(vault.query, "maker/target", "demo", 1).values())) == 10
        assert latencies(vault.query, "maker/target", "demo", 2) == {}


def test_an_answer_that_was_bought_again_is_no_loss(tmp_path: Path) -> None:
    with Double() as double:
        job = Job(tmp_path, double)
        assert job.run() == 0
        job.cut["generate"].update(temperature=0.7, on_changed_request="rebuy")
        assert job.run() == 0
    assert job.facts()["losses"] == 0 and job.facts()["duplicates"] == 0


def test_p95_is_a_value_that_was_seen() -> None:
    assert p95([5.0]) == 5.0
    assert p95([float(n) for n in range(1, 101)]) == 95.0
    assert p95([3.0, 1.0, 2.0]) == 3.0
