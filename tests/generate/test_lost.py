"""Requests that were lost while they were being answered: the provider goes on and bills, and the response cache has
the answer once it is whole. They are asked for again when it is, not before, and so are never paid twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from eyrie.vault.answer_times import longest
from tests.gateway_double import Double
from tests.generate.job import Job


def paid_per_request(double: Double) -> Counter[str]:
    return Counter(entry["digest"] for entry in double.ledger if float(entry["cost"]) > 0)


def test_what_a_killed_job_had_under_way_is_waited_for_and_not_bought_again(tmp_path: Path) -> None:
    with Double(latency=[3.0, 3.0]) as double:
        job = Job(tmp_path, double, rows=20)
        job.runtime["in_flight"] = 10
        process = job.start()
        while (state := double.brief())["bills"] < 10 or state["in_flight"] < 8:
            assert process.poll() is None and state["bills"] < 20
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        under_way = double.brief()["in_flight"]
        assert under_way >= 8
        assert job.run() == 0
        assert set(paid_per_request(double).values()) == {1} and len(double.ledger) == 20
        assert double.brief()["hits"] >= under_way
    with job.open_vault() as vault:
        assert vault.committed()["unknown"] == 0 and vault.check() == []
    assert len(job.read()) == 20


def test_rows_that_are_held_back_leave_their_places_to_others(tmp_path: Path) -> None:
    """One slot and room for five rows: the five whose connections broke wait, and others are asked meanwhile."""
    plan = [{"match": f'question {i}"', "fault": "gone", "times": 1} for i in range(4, 14)]
    with Double(latency=[0.4, 0.4], plan=plan) as double:
        job = Job(tmp_path, double, rows=20)
        job.runtime["in_flight"] = 1
        assert job.run() == 0
        assert set(paid_per_request(double).values()) == {1} and double.brief()["hits"] == 10
        order = [entry["digest"] for entry in double.ledger]
        assert len(order) == 20
    assert job.facts()["rows"]["rejected"] == {} and len(job.read()) == 20


def test_free_requests_are_asked_for_again_at_once(tmp_path: Path, capsys) -> None:
    plan = [{"match": "question 3", "fault": "gone", "times": 1}]
    with Double(latency=[0.2, 0.2], plan=plan, prompt_price="0", completion_price="0") as double:
        job = Job(tmp_path, double, rows=6)
        assert job.run() == 0 and len(job.read()) == 6
        assert "held back" not in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "expected"), [([], 0.0), ([2.0], 2.0), (list(range(100)), 94), ([-3.0], 0.0)])
def test_an_answer_takes_as_long_as_nearly_all_others_did(seconds: list[float], expected: float) -> None:
    assert longest(seconds) == expected
