"""Budgets of runs, accounts and datasets, and the key's own figure, with real jobs in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.errors import ExitCode
from tests.gateway_double import Double
from tests.generate.job import Job, prompt


def test_a_datasets_budget_stops_that_dataset_alone(tmp_path: Path, capsys) -> None:
    with Double(tokens=[60, 64]) as double:
        job = Job(tmp_path, double, rows=60)
        job.runtime["dataset_budgets_usd"] = {"demo": 0.002, "other": 0.0001}
        assert job.run() == ExitCode.BUDGET_REACHED
        assert "datasets.demo.budget_usd is $0.002" in capsys.readouterr().err
        assert Decimal("0.001") < double.billed <= Decimal("0.002")
        other = Job(tmp_path, double, rows=5, name="free_of_it")
        other.rows = [prompt(i, f"another {i}") for i in range(5)]
        other.runtime["dataset_budgets_usd"] = job.runtime["dataset_budgets_usd"]
        assert other.run() == 0


@pytest.mark.parametrize("reserve", ["worst", "quantile"])
def test_two_runs_at_once_in_processes_of_their_own_keep_one_accounts_budget(tmp_path: Path, reserve: str) -> None:
    with Double(tokens=[5, 64], latency=[0.3, 0.5]) as double:
        processes = []
        for name in ("first", "second"):
            job = Job(tmp_path, double, name=name)
            job.runtime.update(run=name, reserve=reserve)
            job.runtime["gateway"]["account_budget_usd"] = 0.02
            job.rows = [prompt(i, f"{name} {i}") for i in range(600)]
            processes.append(job.start())
        codes = []
        for process in processes:
            process.communicate(timeout=240)
            codes.append(process.returncode)
        assert codes == [ExitCode.BUDGET_REACHED] * 2
        assert Decimal("0.015") < double.billed
        if reserve == "worst":
            assert double.billed <= Decimal("0.02")
        else:  # 32 under way at most, each at its limit instead of what was held for it
            assert double.billed <= Decimal("0.02") + 32 * Decimal("0.0003")
        with job.open_vault() as vault:
            assert vault.check() == []
            assert vault.committed()["settled"] >= double.billed * 1_000_000
            assert {r[0] for r in vault.query("SELECT run FROM jobs")} == {"first", "second"}


def test_a_request_lost_without_a_trace_is_settled_by_the_keys_usage(tmp_path: Path, capsys) -> None:
    """A reply that never came and has no id; the cache does not know it; the bill is only in the key's usage."""
    with Double(cache=False, plan=[{"match": "question 3", "fault": "drop", "times": 1}]) as double:
        job = Job(tmp_path, double, rows=8)
        job.runtime["gateway"]["usage_lag_s"] = 0.0
        assert job.run() == 0
        with job.open_vault() as vault:
            assert vault.committed()["unknown"] > 0  # billed, perhaps
            before = vault.committed()
        job.rows = [prompt(i) for i in range(9)]
        assert job.run() == 0
        said = capsys.readouterr().err
        assert "1 lost requests are settled by the key's usage" in said
        with job.open_vault() as vault:
            books = vault.committed()
            assert books["unknown"] == 0 and before["unknown"] > 0 and vault.check() == []
            billed = sum(Decimal(r[0]) for r in vault.query("SELECT billed FROM journal WHERE cost > 0"))
        assert billed == double.billed  # to the last digit


def test_use_of_the_key_by_others_is_said(tmp_path: Path, capsys) -> None:
    with Double() as double:
        job = Job(tmp_path, double, rows=3)
        job.runtime["gateway"]["usage_lag_s"] = 0.0
        assert job.run() == 0
        stranger = Job(tmp_path / "elsewhere", double, rows=0)
        double.change(tokens=[20_000, 20_000])  # more than a cent
        stranger.cut["generate"]["max_tokens"] = 20_000
        stranger.runtime.update(timeout_s=5000.0, deadline_s=5000.0)
        stranger.rows = [prompt(0, "a stranger's question")]
        assert stranger.run() == 0
        double.change(tokens=[20, 40])
        capsys.readouterr()
        job.rows = [prompt(i) for i in range(4)]
        assert job.run() == 0
        assert "does anybody else use this key?" in capsys.readouterr().err


def test_a_refused_key_stops_before_the_first_request(tmp_path: Path, capsys) -> None:
    with Double(keys=["another"]) as double:
        job = Job(tmp_path, double, rows=3)
        assert job.run() == ExitCode.KEY_REFUSED
        assert "Traceback" not in capsys.readouterr().err and double.ledger == []


@pytest.fixture
def small_disk(tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_up(disk: Path, leave: int) -> Path:
    """A file that leaves so many bytes free."""
    found = os.statvfs(disk)
    ballast = disk / "ballast"
    ballast.write_bytes(b"\0" * (found.f_bavail * found.f_frsize - leave))
    return ballast


def test_a_nearly_full_disk_stops_a_job_before_it_buys(tmp_path: Path, small_disk: Path, capsys) -> None:
    with Double() as double:
        job = Job(tmp_path, double, rows=3)
        job.vault = small_disk / "vault"
        ballast = fill_up(small_disk, 4 << 20)
        assert job.run() == ExitCode.MISSING
        said = capsys.readouterr().err
        assert "free space" in said and "Traceback" not in said and double.ledger == []
        ballast.unlink()
        assert job.run() == 0


def test_a_disk_that_fills_during_a_run_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    """The look at the free space is taken away, so that SQLite itself meets the full disk."""
    blind = (
        "import sys, eyrie.generate.run as run; run.ROOM_BYTES = run.ROOM_PER_SLOT = 0\n"
        "from eyrie import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    with Double(latency=[0.0, 0.02]) as double:
        job = Job(tmp_path, double, rows=0)
        job.vault = small_disk / "vault"
        job.rows = [prompt(i, "SAY " + os.urandom(8000).hex()) for i in range(120)]
        arguments = job.arguments()
        ballast = fill_up(small_disk, 400 << 10)
        first = subprocess.run([sys.executable, "-c", blind, *arguments], capture_output=True, text=True, timeout=120)
        assert first.returncode == ExitCode.MISSING, first.stderr
        assert "full" in first.stderr and "Traceback" not in first.stderr
        assert 0 < len(double.ledger) < 120
        ballast.unlink()
        assert job.run() == 0
        assert len(job.read()) == 120
        assert len(double.ledger) == 120 and double.state()["hits"] > 0  # what found no room came back free
        with job.open_vault() as vault:
            assert vault.check() == [] and vault.committed()["unknown"] == 0
