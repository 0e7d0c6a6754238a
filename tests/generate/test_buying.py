"""Buying through a real HTTP gateway into a real vault."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.errors import ExitCode
from eyrie.files import sha256_file
from tests.gateway_double import Double
from tests.generate.job import KEY, Job, prompt


@pytest.fixture(scope="module")
def server() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture
def double(server: Double) -> Double:
    server.reset()
    return server


def test_a_rerun_buys_nothing_and_gives_the_same_bytes(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=30)
    assert job.run() == 0
    first, summary, requests = sha256_file(job.output), job.summary.read_bytes(), double.state()["requests"]
    job.output.unlink()
    assert job.run() == 0
    assert sha256_file(job.output) == first and job.summary.read_bytes() == summary
    assert double.state()["requests"] == requests == 30


def test_the_vault_books_what_the_gateway_billed(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=30)
    assert job.run() == 0
    assert Decimal(job.facts()["dollars"]["billed"]) == double.billed
    with job.open_vault() as vault:
        settled = vault.committed()["settled"]
        assert vault.check() == []
    assert 0 <= settled - double.billed * 1_000_000 < 30  # each booked cost is rounded up by less than a micro-dollar


def test_an_answer_carries_its_provenance(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=3)
    assert job.run() == 0
    row = job.read()[1]
    assert row["id"] == "row-0001" and row["index"] == 1 and row["source"]["row"] == 1
    answer = row["answers"][0]
    assert row["messages"][answer["message"]]["role"] == "assistant"
    assert answer["provider"] in ("Alpha", "Beta") and answer["model"] == "maker/target"
    assert answer["generation_id"].startswith("gen-") and answer["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] > 0 and answer["cost_microusd"] > 0 and answer["changed"] is False


def test_a_changed_request_is_kept_and_counted(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=10)
    assert job.run() == 0
    texts = [row["messages"] for row in job.read()]
    job.cut["generate"]["temperature"] = 0.7
    assert job.run() == 0
    assert len(double.ledger) == 10
    assert job.facts()["changed"] == 10 and [row["messages"] for row in job.read()] == texts
    assert all(row["answers"][0]["changed"] for row in job.read())


def test_a_changed_request_is_bought_again_when_asked_for(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=10)
    assert job.run() == 0
    job.cut["generate"].update(temperature=0.7, on_changed_request="rebuy")
    assert job.run() == 0
    assert len(double.ledger) == 20 and job.facts()["changed"] == 0
    assert job.run() == 0 and len(double.ledger) == 20


def test_a_request_that_came_before_is_bought_once(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=0)
    job.rows = [prompt(i, f"question {i % 4}") for i in range(20)]
    assert job.run() == 0
    assert len(double.ledger) == 4 and job.facts()["shared"] == 16 and len(job.read()) == 20
    costs = [row["answers"][0]["cost_microusd"] for row in job.read()]
    assert all(costs[:4]) and not any(costs[4:])  # the first row paid


def test_repetitions_are_bought_apart(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=4)
    job.cut["generate"]["repetitions"] = 3
    assert job.run() == 0
    rows = job.read()
    assert [row["id"] for row in rows[:4]] == ["row-0000", "row-0000#r1", "row-0000#r2", "row-0001"]
    assert len({row["messages"][-1]["content"] for row in rows[:3]}) == 3 and len(double.ledger) == 12


def test_answers_cut_at_max_tokens_are_kept_or_dropped_as_told(tmp_path: Path, double: Double) -> None:
    double.change(tokens=[5, 20])
    job = Job(tmp_path, double, rows=20)
    job.cut["generate"]["max_tokens"] = 12
    assert job.run() == 0
    cut = [row for row in job.read() if row["answers"][0]["finish_reason"] == "length"]
    assert 0 < len(cut) < 20
    job.cut["generate"]["on_length"] = "drop"
    assert job.run() == 0
    assert len(job.read()) == 20 - len(cut) and job.facts()["rows"]["rejected"] == {"length": len(cut)}
    assert len(double.ledger) == 20


def test_a_token_budget_cuts_at_the_row_that_fills_it(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=200)
    job.cut["generate"]["tokens_per_dataset"] = 1000
    assert job.run() == 0
    tokens = [row["answers"][0]["usage"]["completion_tokens"] for row in job.read()]
    assert sum(tokens) >= 1000 > sum(tokens[:-1])
    assert [row["index"] for row in job.read()] == list(range(len(tokens)))
    assert len(double.ledger) < len(tokens) + 16  # no more than what was under way when it filled


def test_a_larger_token_budget_only_adds_rows(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=200)
    job.cut["generate"]["tokens_per_dataset"] = 500
    assert job.run() == 0
    small = job.read()
    job.cut["dataset"]["tokens"] = 1500  # the dataset's own wins
    assert job.run() == 0
    assert job.read()[: len(small)] == small and len(job.read()) > len(small)
    assert len({entry["digest"] for entry in double.ledger}) == len(double.ledger)


def test_prompts_that_end_before_the_token_budget_are_incomplete(tmp_path: Path, double: Double, capsys) -> None:
    job = Job(tmp_path, double, rows=5)
    job.cut["dataset"]["tokens"] = 100_000
    assert job.run() == ExitCode.INCOMPLETE
    assert "raise the dataset's rows" in capsys.readouterr().err and not job.output.exists()
    job.runtime["on_exhausted"] = "build_partial"
    assert job.run() == 0
    assert len(job.read()) == 5 and job.facts()["complete"] is False and len(double.ledger) == 5


def test_without_a_key_the_job_says_where_to_put_it_and_writes_nothing(
    tmp_path: Path, double: Double, capsys, monkeypatch
) -> None:
    job = Job(tmp_path, double)
    arguments = job.arguments()
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    job.runtime["gateway"]["api_key_file"] = None
    before = sorted(tmp_path.rglob("*"))
    assert job.run() == ExitCode.MISSING == 3
    message = capsys.readouterr().err
    assert "gateway.api_key_file" in message and "OPENROUTER_API_KEY" in message
    assert sorted(tmp_path.rglob("*")) == before and double.state()["requests"] == 0 and arguments


def test_the_key_is_in_one_header_and_in_no_file_or_message(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=6)
    double.change(plan=[{"match": "question 2", "fault": "429", "times": 1}])
    (tmp_path / "key.txt").unlink()
    job.runtime["gateway"]["api_key_file"] = None
    process = job.start(OPENROUTER_API_KEY=KEY)
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait() == 0
    assert double.state()["headers"]["authorization"] == f"Bearer {KEY}"
    double.change(keys=["another"])  # the double's refusal repeats the key it was given
    job.rows = [prompt(i) for i in range(12)]
    refused = job.start(OPENROUTER_API_KEY=KEY)
    assert refused.stderr is not None
    said += refused.stderr.read()
    assert refused.wait() == ExitCode.KEY_REFUSED and "[key]" in said
    assert KEY not in said and KEY not in double.state()["body"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "vault.sqlite" for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    with job.open_vault() as vault:
        stored = [bytes(row[0]) for row in vault._rows("SELECT reply FROM answers")]  # compressed: look inside
        assert stored and all(KEY.encode() not in (json.dumps(row["messages"])).encode() for row in job.read())
        assert not [r for r in vault._rows("SELECT error FROM journal WHERE error LIKE ?", (f"%{KEY}%",))]


def test_budget_zero_names_what_to_set_when_nothing_is_free(tmp_path: Path, double: Double, capsys) -> None:
    job = Job(tmp_path, double)
    job.runtime["budget_usd"] = 0.0
    assert job.run() == ExitCode.BUDGET_REACHED
    assert "generate.budget_usd" in capsys.readouterr().err
    assert double.state()["requests"] == 0


def test_budget_zero_uses_only_the_free_endpoints(tmp_path: Path, double: Double) -> None:
    free = {"tag": "free/bf16", "provider_name": "Free", "quantization": "int4",
            "pricing": {"prompt": "0", "completion": "0"}}  # fmt: skip
    paid = {"tag": "beta/fp8", "provider_name": "Beta", "quantization": "fp8"}
    double.change(endpoints=[paid, free])
    job = Job(tmp_path, double, rows=1)
    job.runtime.update(budget_usd=0.0, max_attempts=100)
    job.run()  # the double answers from any endpoint; what is asked for is what counts here
    assert json.loads(double.state()["body"])["provider"]["only"] == ["free/bf16"]


def test_a_server_without_prices_needs_no_key_and_no_budget(tmp_path: Path, double: Double) -> None:
    double.change(model="target")
    job = Job(tmp_path, double, rows=5, kind="openai")
    job.runtime["gateway"]["api_key_file"] = None
    job.runtime["budget_usd"] = 0.0
    assert job.run() == 0
    assert len(job.read()) == 5 and job.facts()["dollars"]["billed"] == "0"
    body = json.loads(double.state()["body"])
    assert "provider" not in body and body["return_token_ids"] is True
    assert "authorization" not in double.state()["headers"]


def test_odd_characters_survive_the_way_into_the_file(tmp_path: Path, double: Double) -> None:
    long = "".join(f"{number:07d} " for number in range(625_000))
    said = "a\u2028b\u2029c\u0085d \ud83d e \x00 \U0001f600"
    job = Job(tmp_path, double, rows=0)
    job.rows = [prompt(0, "SAY " + said), prompt(1, "SAY " + long)]
    assert job.run() == 0
    rows = job.read()
    assert rows[0]["messages"][-1]["content"] == said
    assert rows[1]["messages"][-1]["content"] == long


def test_reasoning_and_its_details_are_kept_verbatim_and_replayed(tmp_path: Path, double: Double) -> None:
    job = Job(tmp_path, double, rows=0)
    job.rows = [prompt(0, turns=[{"role": "user", "content": "and then?"}])]
    job.cut["target"]["thinking"] = True
    job.cut["dataset"]["turns"] = 2
    assert job.run() == 0
    messages = job.read()[0]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["reasoning"] == "thinking \u2028 about it" and messages[1]["reasoning_details"][0]["signature"]
    sent = json.loads(double.state()["body"])
    assert sent["reasoning"] == {"enabled": True} and sent["messages"][1] == messages[1]


def test_tool_calls_are_answered_from_the_row_and_end_it_when_nothing_is_recorded(
    tmp_path: Path, double: Double
) -> None:
    job = Job(tmp_path, double, rows=0)
    result = {"role": "tool", "name": "weather", "content": "sunny"}
    job.rows = [
        prompt(0, "TOOL weather", turns=[result, {"role": "user", "content": "thanks"}]),
        prompt(1, "TOOL stocks", turns=[result]),
    ]
    job.cut["dataset"]["turns"] = 2
    assert job.run() == 0
    first, second = job.read()
    assert [m["role"] for m in first["messages"]] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    call = first["messages"][1]["tool_calls"][0]
    assert first["messages"][2] == {"role": "tool", "name": "weather", "content": "sunny", "tool_call_id": call["id"]}
    assert [a["message"] for a in first["answers"]] == [1, 3, 5]
    assert [m["role"] for m in second["messages"]] == ["user", "assistant"]
    assert job.facts()["ended"] == {"finished": 1, "tool_result_missing": 1}
    assert job.run() == 0 and len(double.ledger) == 4


def test_a_target_served_here_is_another_model_once_its_weights_change(tmp_path: Path) -> None:
    settings = Job(tmp_path, None, kind="embedded")
    from eyrie.generate.settings import Settings

    read = Settings.read(settings.cut, settings.runtime)
    assert read.identity_model("aaaa") != read.identity_model("bbbb")


def test_progress_and_the_closing_line_name_counts(tmp_path: Path, double: Double, capfd) -> None:
    job = Job(tmp_path, double, rows=3)
    assert job.run() == 0
    said = capfd.readouterr().err
    assert " 3/3 rows, " in said and "demo: 3 conversations, 3 answers" in said and os.linesep in said
