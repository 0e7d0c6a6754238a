"""The budget is hard: for the run and for the account, whatever is under way."""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.errors import ExitCode
from tests.gateway_double import Double
from tests.generate.job import Job, prompt


@pytest.mark.parametrize("faults", [{}, {"429": 0.1, "drop": 0.05, "cut": 0.05, "blank": 0.1, "inband_partial": 0.1}])
def test_budget_is_never_passed_by_requests_in_flight(tmp_path: Path, faults: dict[str, float], monkeypatch) -> None:
    monkeypatch.setattr("eyrie.generate.buyer.BACKOFF_S", 0.02)
    with Double(tokens=[60, 64], latency=[0.5, 0.8], rates=faults) as double:
        job = Job(tmp_path, double, rows=400)
        job.runtime.update(budget_usd=0.02, in_flight=200)
        code = job.run()
        assert code == ExitCode.BUDGET_REACHED and not job.output.exists()
        assert double.state()["peak"] > 30
        with job.open_vault() as vault:
            books = vault.committed()
        assert double.billed <= Decimal("0.02")
        assert sum(books.values()) <= 20_000 and books["reserved"] == 0
        assert double.billed > Decimal("0.008" if faults else "0.019")  # and it is used


def test_a_raised_budget_continues_and_says_what_was_missing(tmp_path: Path, capsys) -> None:
    with Double() as double:
        job = Job(tmp_path, double, rows=60)
        job.runtime["budget_usd"] = 0.001
        assert job.run() == ExitCode.BUDGET_REACHED
        message = capsys.readouterr().err
        assert "generate.budget_usd is $0.001" in message and "rows are still open" in message
        job.runtime["budget_usd"] = 1.0
        assert job.run() == 0
        assert len(double.ledger) == 60


def test_partial_data_is_built_on_when_that_is_asked_for(tmp_path: Path) -> None:
    with Double() as double:
        job = Job(tmp_path, double, rows=60)
        job.runtime.update(budget_usd=0.001, on_exhausted="build_partial")
        assert job.run() == 0
        facts = job.facts()
        assert facts["complete"] is False and facts["rows"]["open"] > 0
        assert len(job.read()) == facts["rows"]["answered"] == len(double.ledger)


def test_two_runs_on_one_account_share_its_budget(tmp_path: Path) -> None:
    with Double(tokens=[60, 64]) as double:
        codes = []
        for name in ("first", "second"):
            job = Job(tmp_path, double, name=name)
            job.runtime["run"] = name
            job.runtime["gateway"]["account_budget_usd"] = 0.005
            job.rows = [prompt(i, f"{name} {i}") for i in range(100)]
            codes.append(job.run())
        assert codes == [ExitCode.BUDGET_REACHED] * 2
        assert Decimal("0.004") < double.billed <= Decimal("0.005")


SURPRISES = {name: 0.03 for name in (
    "long", "no_usage", "string_usage", "drop", "cut", "blank", "wrong_provider", "inband_partial", "524_billed", "500",
    "reset", "empty", "loop",
)}  # fmt: skip


def test_two_thousand_in_flight_with_surprises_never_pass_the_budget(tmp_path: Path, monkeypatch) -> None:
    """Worst-case reservation: the overrun is 0, whatever the answers cost and however late one hears of it.

    The prompt costs nothing here, so that worst cases and real costs are close and the budget is used up soon.
    """
    monkeypatch.setattr("eyrie.generate.buyer.BACKOFF_S", 0.02)
    monkeypatch.setattr("eyrie.generate.run.START", 2000.0, raising=False)
    monkeypatch.setattr("eyrie.generate.gate.RAMP_PER_S", 2000.0, raising=False)
    with Double(
        tokens=[50, 64], latency=[0.1, 0.5], rates=SURPRISES, generation_lag=1.0, prompt_price="0", hold=True
    ) as double:
        job = Job(tmp_path, double, rows=4000)
        job.runtime.update(budget_usd=0.33, in_flight=2000, slots_per_client=50, reserve="worst", max_attempts=100,
                           patience_s=600.0, timeout_s=300.0)  # fmt: skip
        filling = threading.Thread(target=release_when_full, args=(double, 1900))
        filling.start()
        assert job.run() == ExitCode.BUDGET_REACHED
        filling.join()
        state = double.brief()
        assert state["peak"] > 1900
        assert Decimal("0.2") < Decimal(state["billed"]) <= Decimal("0.33")
        with job.open_vault() as vault:
            books = vault.committed()
            assert vault.check() == [] and books["reserved"] == 0
        assert Decimal(state["billed"]) * 1_000_000 <= books["settled"] + books["unknown"] <= 330_000


def release_when_full(double: Double, in_flight: int) -> None:
    """Let no answer finish before so many requests are under way."""
    deadline = time.monotonic() + 240
    while double.brief()["in_flight"] < in_flight and time.monotonic() < deadline:
        time.sleep(0.1)
    double.change(hold=False)
