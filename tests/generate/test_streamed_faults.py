"""The same faults met by a job that streams: what they cost and what they must not do to the data."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.gateway_double import Double
from tests.generate.job import Job

OF_THE_GATEWAY = ["429", "500", "502", "503", "504", "524", "529", "html", "html200", "empty", "inband", "inband_429",
                  "inband_text", "inband_partial", "cut", "drop", "midstream", "midstream_bare", "no_done", "reset",
                  "no_choices", "null_choice", "edge_1015"]  # fmt: skip
OF_THE_ROW = {"blank": "empty", "content_filter": "moderated", "refusal": "refused", "wrong_provider": "wrong_provider",
              "wrong_model": "wrong_model", "odd_finish": "finish_reason", "loop": "loop",
              "leak": "leaked_marker"}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture
def double(server: Double) -> Double:
    server.reset(latency=[0, 0.005])
    return server


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What 10 streamed rows say without faults."""
    with Double(latency=[0, 0.005]) as server:
        job = streaming(tmp_path_factory.mktemp("undisturbed"), server)
        assert job.run() == 0
        return [row["messages"] for row in job.read()]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyrie.generate.buyer.BACKOFF_S", 0.02)
    monkeypatch.setattr("eyrie.generate.limiter.COOL_S", 0.02)


def streaming(folder: Path, double: Double) -> Job:
    job = Job(folder, double)
    job.runtime["gateway"]["stream"] = True
    return job


def test_a_streamed_run_says_the_same_for_the_same_money(tmp_path: Path, double: Double) -> None:
    said, spent = [], []
    for stream in (False, True):
        job = streaming(tmp_path / str(stream), double)
        job.runtime["gateway"]["stream"] = stream
        assert job.run() == 0
        said.append([row["messages"] for row in job.read()])
        spent.append(job.facts()["dollars"])
    assert said[0] == said[1] and spent[0] == spent[1]
    assert Decimal(spent[0]["billed"]) * 2 == double.billed > 0


@pytest.mark.parametrize("fault", OF_THE_GATEWAY)
def test_a_streamed_fault_of_the_gateway_uses_up_no_attempt(
    tmp_path: Path, double: Double, undisturbed: list[Any], fault: str
) -> None:
    double.change(plan=[{"match": "question 3", "fault": fault, "times": 3}])
    job = streaming(tmp_path, double)
    job.runtime["max_attempts"] = 1
    assert job.run() == 0
    assert double.state()["faults"] == {fault: 3}
    with job.open_vault() as vault:
        books = vault.committed()
        assert books["reserved"] == 0 and vault.check() == []
        assert vault.spent("maker/target", "demo")["attempts"]["done"] == 10
        assert books["settled"] + books["unknown"] >= double.billed * 1_000_000
    # A stream that was cut is in no response cache: it is bought again, so ids and money may differ, words may not.
    assert [row["messages"] for row in job.read()] == undisturbed


@pytest.mark.parametrize(("fault", "reason"), OF_THE_ROW.items())
def test_a_streamed_fault_of_the_row_rejects_it_after_its_attempts(
    tmp_path: Path, double: Double, fault: str, reason: str
) -> None:
    double.change(plan=[{"match": "question 3", "fault": fault, "times": 100}])
    job = streaming(tmp_path, double)
    assert job.run() == 0
    assert job.facts()["rows"] == {"answered": 9, "open": 0, "prompts": 10, "rejected": {reason: 1}}
    assert double.state()["faults"] == {fault: 2 if reason in ("loop", "leaked_marker") else 3}
    assert Decimal(job.facts()["dollars"]["billed"]) == double.billed
