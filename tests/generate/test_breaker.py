"""Breakers: who fails is left out, comes back by probes, and the policy is never left."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from eyrie.files import canonical_json
from eyrie.gateway.errors import Blame, Fault
from eyrie.gateway.providers import Endpoint
from eyrie.gateway.reply import Reply, Verdict
from eyrie.gateway.request import narrow
from eyrie.generate.breaker import EVERYWHERE, FAULTS, OPEN_S, PROBES, Breaker, Route
from tests.gateway_double import Double
from tests.generate.job import Job


def endpoint(tag: str, name: str) -> Endpoint:
    return Endpoint(tag, name, "int4", 0, 99.0, 262144, None, "0.0000005", "0.0000022")


THREE = (endpoint("alpha/int4", "Alpha"), endpoint("beta/fp8", "Beta"), endpoint("beta/int8", "Beta"))


def answered(name: str) -> Reply:
    return Reply(b"", Verdict.OK, provider=name, status=200)


def failed(name: str | None, reason: str = "provider_error", blame: Blame = Blame.GATEWAY, **more: object) -> Reply:
    return Reply(b"", fault=Fault(blame, reason, retry_after=more.pop("retry_after", None)), provider=name,  # type: ignore[arg-type]
                 status=200, **more)  # type: ignore[arg-type]  # fmt: skip


def opened(now: float = 0.0, names: tuple[str, ...] = ("Alpha",)) -> Breaker:
    breaker = Breaker(THREE, random.Random(0))
    for name in names:
        for _ in range(FAULTS):
            breaker.judge(failed(name), EVERYWHERE, now, now)
    return breaker


def test_an_endpoint_that_fails_is_left_out_and_the_others_are_not() -> None:
    breaker = opened()
    assert breaker.out == ["Alpha"]
    assert breaker.route(1.0) == Route(frozenset({"beta/fp8", "beta/int8"}))
    assert "Alpha is left out" in breaker.notes[0] and "provider_error" in breaker.notes[0]


def test_a_few_faults_among_good_answers_open_nothing() -> None:
    breaker = Breaker(THREE)
    for number in range(400):
        breaker.judge(failed("Alpha") if number % 4 == 0 else answered("Alpha"), EVERYWHERE, number, number)
    assert breaker.out == [] and breaker.route(500.0) == EVERYWHERE


def test_faults_of_the_row_are_not_held_against_the_endpoint_but_empty_answers_are() -> None:
    breaker = Breaker(THREE)
    for _ in range(50):
        breaker.judge(failed("Alpha", "moderated", Blame.ROW), EVERYWHERE, 0, 0)
        breaker.judge(failed("Alpha", "invalid_request", Blame.PERMANENT), EVERYWHERE, 0, 0)
    assert breaker.out == []
    for _ in range(50):
        breaker.judge(failed("Beta", "empty", Blame.ROW), EVERYWHERE, 0, 0)
    assert breaker.out == ["Beta"]


def test_the_router_tells_of_endpoints_that_failed_before_another_answered() -> None:
    breaker = Breaker(THREE)
    for _ in range(FAULTS):
        breaker.judge(Reply(b"", Verdict.OK, provider="Beta", status=200, tried=(("Alpha", 502),)), EVERYWHERE, 0, 0)
    assert breaker.out == ["Alpha"]


def test_an_overload_of_the_whole_gateway_is_no_endpoints_fault() -> None:
    breaker = Breaker(THREE)
    everybody = Reply(
        b"", fault=Fault(Blame.OVERLOAD, "rate_limited"), status=429, tried=(("Alpha", 429), ("Beta", 429))
    )
    for _ in range(50):
        assert not breaker.judge(everybody, EVERYWHERE, 0, 0)
    assert breaker.out == []
    assert breaker.judge(failed("Alpha", "rate_limited", Blame.OVERLOAD), EVERYWHERE, 0, 0)


def test_one_probe_at_a_time_lets_an_endpoint_back_in_after_two_good_ones() -> None:
    breaker, later = opened(), 2 * OPEN_S
    for number in range(PROBES):
        probe = breaker.route(later)
        assert probe == Route(frozenset({"alpha/int4"}), "Alpha")
        assert breaker.route(later) == Route(frozenset({"beta/fp8", "beta/int8"})), "others do not wait for it"
        assert breaker.out == ["Alpha"], number
        breaker.judge(answered("Alpha"), probe, later, later)
    assert breaker.out == [] and breaker.route(later) == EVERYWHERE
    assert "back in" in breaker.notes[-1]


def test_a_probe_that_fails_keeps_the_endpoint_out_for_longer() -> None:
    breaker, now = opened(), 0.0
    lasted = []
    for _ in range(8):
        until = breaker.health["Alpha"].until
        assert until is not None
        lasted.append(until - now)
        now = until
        probe = breaker.route(now)
        assert probe is not None and probe.probe == "Alpha"
        assert breaker.judge(failed(None), probe, now, now)
    assert lasted[3] > 4 * lasted[0] and max(lasted) <= 300 * 1.2


def test_a_probe_that_was_never_sent_is_given_to_the_next_request() -> None:
    breaker = opened()
    probe = breaker.route(2 * OPEN_S)
    assert probe is not None and probe.probe == "Alpha"
    breaker.unsent(probe)
    assert breaker.route(2 * OPEN_S) == probe


def test_with_every_endpoint_out_nothing_may_be_sent_until_a_probe_is_due() -> None:
    breaker = opened(names=("Alpha", "Beta"))
    assert breaker.route(0.1) is None
    assert "pauses" in breaker.notes[-1]
    first, second = breaker.route(2 * OPEN_S), breaker.route(2 * OPEN_S)
    assert first is not None and second is not None and {first.probe, second.probe} == {"Alpha", "Beta"}
    assert breaker.route(2 * OPEN_S) is None


def test_an_endpoint_that_asks_for_a_pause_gets_it() -> None:
    breaker = Breaker(THREE)
    for _ in range(FAULTS):
        breaker.judge(failed("Alpha", "rate_limited", Blame.OVERLOAD, retry_after=120.0), EVERYWHERE, 0, 0)
    assert breaker.health["Alpha"].until == pytest.approx(120.0)


def test_outcomes_of_requests_from_before_a_change_say_nothing() -> None:
    breaker = opened(now=50.0)
    for _ in range(PROBES):
        probe = breaker.route(100.0)
        assert probe is not None
        breaker.judge(answered("Alpha"), probe, 100.0, 101.0)
    for _ in range(50):
        breaker.judge(failed("Alpha"), EVERYWHERE, 40.0, 102.0)
    assert breaker.out == []


def test_narrowing_keeps_the_policy_and_never_widens_the_list() -> None:
    provider = {"only": ["alpha/int4", "beta/fp8"], "max_price": {"prompt": "0.5"}, "quantizations": ["int4", "fp8"]}
    messages = [{"role": "user", "content": '"only":["x"] \u2028'}]
    body = canonical_json({"messages": messages, "model": "m", "provider": provider}).encode()
    assert narrow(body, None) is body
    assert narrow(body, frozenset({"alpha/int4", "beta/fp8", "gamma/fp4"})) is body
    assert narrow(body, frozenset({"gamma/fp4"})) is body
    less = json.loads(narrow(body, frozenset({"beta/fp8", "gamma/fp4"})))
    whole = json.loads(body)
    assert less["provider"].pop("only") == ["beta/fp8"] and whole["provider"].pop("only") == ["alpha/int4", "beta/fp8"]
    assert less == whole


def test_a_run_leaves_a_failing_endpoint_out_of_its_requests(tmp_path: Path, monkeypatch, capsys) -> None:
    """Whoever answers question 3 first fails it; requests narrow to the other, and the fingerprints stay the same."""
    monkeypatch.setattr("eyrie.generate.buyer.BACKOFF_S", 0.01)
    monkeypatch.setattr("eyrie.generate.breaker.FAULTS", 1)
    monkeypatch.setattr("eyrie.generate.breaker.SHARE", 0.0)
    with Double(plan=[{"match": "question 3", "fault": "inband", "times": 1}]) as double:
        job = Job(tmp_path, double, rows=30)
        job.runtime["in_flight"] = 1
        assert job.run() == 0
        message = capsys.readouterr().err
        assert "is left out for" in message
        sent = json.loads(double.state()["body"])["provider"]
        assert len(sent["only"]) == 1 and sent["allow_fallbacks"] is True and "max_price" in sent
        assert len(job.read()) == 30
        assert all(not answer["changed"] for row in job.read() for answer in row["answers"])
        assert job.facts()["rows"]["rejected"] == {}


def test_an_answer_lost_on_the_way_is_asked_for_with_the_same_bytes_whatever_the_breakers_say(
    tmp_path: Path, monkeypatch
) -> None:
    """The response cache knows it by its bytes: a narrowed list would be paid for a second time."""
    monkeypatch.setattr("eyrie.generate.buyer.BACKOFF_S", 0.3)
    monkeypatch.setattr("eyrie.generate.breaker.FAULTS", 1)
    monkeypatch.setattr("eyrie.generate.breaker.SHARE", 0.0)
    plan = [{"match": "question 1", "fault": "cut", "times": 1}, {"match": "question 2", "fault": "inband", "times": 1}]
    with Double(plan=plan) as double:
        job = Job(tmp_path, double, rows=6)
        job.runtime["in_flight"] = 6
        assert job.run() == 0
        state = double.state()
        assert state["hits"] == 1
        paid = [entry for entry in double.ledger if float(entry["cost"]) > 0]
        assert len(paid) == 6
