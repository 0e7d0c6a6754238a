"""What odd replies do to a whole job: to its data, its money and its history."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eyrie.errors import ExitCode
from eyrie.vault import Identity
from tests.gateway.wire import USAGE, Request, Response, as_chunks, events, plain, reply
from tests.generate.job import KEY, Job
from tests.generate.scripted import ENDPOINTS, Scripted

LOOP = "and again " * 500


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyrie.generate.buyer.BACKOFF_S", 0.02)


def mark(request: Request) -> str:
    """An id that follows from the request's bytes."""
    return "gen-" + hashlib.sha256(request.raw).hexdigest()[:12]


def say(request: Request, message: dict[str, Any] | None = None, finish: str = "stop", **top: Any) -> Response:
    """The answer `message`, streamed when it was asked for so. Without one: a text that follows from the question."""
    body = request.body
    if message is None:
        message = {"content": f"answer to {body['messages'][-1]['content']} \u2028"}
    whole = reply(message, finish, **{"id": mark(request), **top})
    headers = {"X-Generation-Id": mark(request)}
    if body["stream"]:
        return events([b": PROCESSING\n\n", *as_chunks(whole)], **headers)
    return Response([json.dumps(whole).encode()], headers=headers)


def last(request: Request) -> str:
    return str(request.body["messages"][-1]["content"])


@pytest.mark.parametrize("thinking", [None, True])
def test_streamed_answers_make_the_same_file(tmp_path: Path, thinking: bool | None) -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    result = {"role": "tool", "name": "f", "content": "sunny"}

    def chat(request: Request) -> Response:
        thought = {"reasoning": "well", "reasoning_details": [{"type": "reasoning.text", "text": "well", "index": 0}]}
        more = thought if thinking else {}
        if last(request) == "question 2":
            return say(request, {"content": None, "tool_calls": [call], **more}, "tool_calls")
        return say(request, {"content": f"answer to {last(request)} \u2028 \u00e9", **more})

    files = []
    for stream in (False, True):
        with Scripted(chat) as gateway:
            job = Job(tmp_path / str(stream), gateway, rows=6)
            job.rows[2]["turns"] = [result, {"role": "user", "content": "thanks"}]
            job.cut["target"]["thinking"] = thinking
            job.cut["dataset"]["turns"] = 2
            job.runtime["gateway"]["stream"] = stream
            assert job.run() == 0
            assert all(body["stream"] is stream for body in gateway.asked()) and len(gateway.requests) == 8
            files.append([{**row, "answers": [{**a, "generation_id": None} for a in row["answers"]]}
                          for row in job.read()])  # fmt: skip
    assert files[0] == files[1]


def test_long_answers_are_streamed_and_short_ones_are_not_unless_told(tmp_path: Path) -> None:
    with Scripted(say) as gateway:
        for number, (max_tokens, told, expected) in enumerate(
            [(64, None, False), (16384, None, True), (16384, False, False), (64, True, True)]
        ):
            job = Job(tmp_path / str(number), gateway, rows=1)
            job.cut["generate"]["max_tokens"] = max_tokens
            job.runtime["gateway"]["stream"] = told
            assert job.run() == 0
            assert gateway.asked()[-1]["stream"] is expected


def test_how_an_answer_travelled_is_no_part_of_its_request(tmp_path: Path) -> None:
    with Scripted(say) as gateway:
        job = Job(tmp_path, gateway, rows=3)
        job.runtime["gateway"]["stream"] = True
        assert job.run() == 0
        job.runtime["gateway"]["stream"] = False
        assert job.run() == 0
        assert len(gateway.requests) == 3 and job.facts()["changed"] == 0


def test_the_response_cache_does_not_give_a_bad_reply_back_to_its_retry(tmp_path: Path) -> None:
    cache: dict[bytes, Response] = {}

    def chat(request: Request) -> Response:
        assert request.headers["x-openrouter-cache"] == "true"
        if request.headers.get("x-openrouter-cache-clear") == "true":
            cache.pop(request.raw, None)
        if request.raw in cache:
            whole = json.loads(b"".join(step for step in cache[request.raw].steps if isinstance(step, bytes)))
            whole["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}
            return plain(whole, X_OpenRouter_Cache_Status="HIT", X_OpenRouter_Cache_Source_Id=mark(request))
        first = not any(r.raw == request.raw for r in gateway.requests[:-1])
        made = say(request, {"content": " "} if first else None)
        return cache.setdefault(request.raw, made)

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=1)
        assert job.run() == 0
        assert len(gateway.requests) == 2 and job.facts()["rows"]["rejected"] == {}
        assert job.read()[0]["messages"][-1]["content"].startswith("answer to")
        assert "x-openrouter-cache-clear" not in gateway.requests[0].headers


def test_a_lost_answer_that_the_cache_gives_back_keeps_its_tokens_and_its_cost(tmp_path: Path) -> None:
    def chat(request: Request) -> Response:
        gateway.bills[mark(request)] = Decimal("0.25")
        if len(gateway.requests) == 1:
            return Response([b'{"choices": ['], headers={"X-Generation-Id": mark(request)}, chunked=True, ends=False)
        whole = reply({"content": "hi"}, id="gen-hit", usage={"prompt_tokens": 0, "completion_tokens": 0, "cost": 0})
        return plain(
            whole,
            X_Generation_Id="gen-hit",
            X_OpenRouter_Cache_Status="HIT",
            X_OpenRouter_Cache_Source_Id=mark(request),
        )

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=1)
        assert job.run() == 0
        answer = job.read()[0]["answers"][0]
        assert answer["usage"]["completion_tokens"] == 9 and answer["cost_microusd"] == 250_000
        assert Decimal(job.facts()["dollars"]["billed"]) == Decimal("0.25")
        assert Decimal(job.facts()["dollars"]["wasted"]) == 0


def test_a_long_answer_under_way_is_no_dead_gateway(tmp_path: Path) -> None:
    began: list[float] = []

    def chat(request: Request) -> Response:
        if last(request) == "question 0":
            began.append(time.monotonic())
            return Response([3.0, json.dumps(reply()).encode()], chunked=True)
        if not began or time.monotonic() < began[0] + 2.0:
            return plain({"error": {"code": 500, "message": "x"}}, 500)
        return say(request)

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=2)
        job.runtime["patience_s"] = 0.8
        assert job.run() == 0


def test_a_row_that_loops_is_given_up_after_two_answers_and_what_it_said_is_kept(tmp_path: Path) -> None:
    def chat(request: Request) -> Response:
        return say(request, {"content": LOOP}, "length") if last(request) == "question 1" else say(request)

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=3)
        job.runtime["max_attempts"] = 5
        assert job.run() == 0
        assert job.facts()["rows"]["rejected"] == {"loop": 1} and len(gateway.requests) == 4
        assert Decimal(job.facts()["dollars"]["wasted"]) == Decimal("0.0002")
        with job.open_vault() as vault:
            given_up = vault.answer(Identity("maker/target", "demo", "row-0001", 0, 0))
        assert given_up is not None and not given_up.is_data
        assert given_up.reply["choices"][0]["message"]["content"] == LOOP


def test_thresholds_of_quality_are_settings(tmp_path: Path) -> None:
    with Scripted(lambda request: say(request, {"content": LOOP})) as gateway:
        job = Job(tmp_path, gateway, rows=1)
        job.runtime["quality"]["loop_window"] = 0
        assert job.run() == 0 and job.read()[0]["messages"][-1]["content"] == LOOP


def test_a_row_that_stays_silent_is_given_up_and_all_that_it_cost_is_settled(tmp_path: Path) -> None:
    lock, number = threading.Lock(), 0

    def chat(request: Request) -> Response:
        nonlocal number
        if last(request) != "question 1":
            return say(request)
        with lock:
            number += 1
            generation = f"gen-silent-{number}"
            gateway.bills[generation] = Decimal("0.5")
        return Response([b" ", 1.0, b"{}"], headers={"X-Generation-Id": generation}, chunked=True)

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=3)
        job.runtime["timeout_s"] = 0.3
        assert job.run() == 0
        assert job.facts()["rows"]["rejected"] == {"silent": 1} and number == 3
        assert Decimal(job.facts()["dollars"]["wasted"]) == Decimal("1.5")
        with job.open_vault() as vault:
            assert vault.committed()["unknown"] == 0


def test_requests_that_miss_their_deadline_leave_no_slot_behind(tmp_path: Path) -> None:
    def chat(request: Request) -> Response:
        first = not any(r.raw == request.raw for r in gateway.requests[:-1])
        return Response([part for _ in range(100) for part in (b" ", 0.05)], chunked=True) if first else say(request)

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=30)
        job.runtime.update(deadline_s=0.5, in_flight=4, slots_per_client=2)
        assert job.run() == 0
        assert len(job.read()) == 30 and len(gateway.requests) == 60


def test_an_answer_through_the_users_own_provider_key_stops_the_run_and_is_kept(tmp_path: Path, capsys) -> None:
    with Scripted(lambda request: say(request, usage={**USAGE, "is_byok": True})) as gateway:
        job = Job(tmp_path, gateway, rows=9)
        job.runtime["in_flight"] = 1
        assert job.run() == ExitCode.USAGE
        assert "gateway.allow_byok" in capsys.readouterr().err and len(gateway.requests) == 1
        job.runtime["gateway"]["allow_byok"] = True
        assert job.run() == 0 and len(gateway.requests) == 9


def test_credits_that_end_are_one_failure_however_often_the_reply_repeats_it(tmp_path: Path) -> None:
    repeated = {"previous_errors": [{"provider": "Alpha", "code": 402}, {"provider": "Beta", "code": 402}]}
    text = (
        "This request requires more credits, or fewer max_tokens. You requested up to 64 tokens, but can only afford 3."
    )
    refusal = {"error": {"code": 402, "message": text, "metadata": repeated}}
    with Scripted(lambda request: plain(refusal, 402)) as gateway:
        job = Job(tmp_path, gateway, rows=5)
        job.runtime["in_flight"] = 1
        assert job.run() == ExitCode.CREDITS_OUT
        assert len(gateway.requests) == 1
        with job.open_vault() as vault:
            assert vault.spent("maker/target", "demo")["attempts"] == {"failed": 1}
            assert vault.committed() == {"settled": 0, "reserved": 0, "unknown": 0}


def test_a_key_that_a_provider_repeats_in_its_error_reaches_no_log_and_no_vault(tmp_path: Path, capfd) -> None:
    def chat(request: Request) -> Response:
        if len(gateway.requests) > 3:
            return say(request)
        raw = f"upstream got {request.headers['authorization']} and dislikes it"
        return plain({"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": raw}}})

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=3)
        assert job.run() == 0
    (tmp_path / "key.txt").unlink()
    assert KEY not in "".join(capfd.readouterr())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    with job.open_vault() as vault:
        errors = [row[0] for row in vault._rows("SELECT error FROM journal WHERE error IS NOT NULL")]
    assert errors and all("[key]" in error and KEY not in error for error in errors)


def test_a_target_that_thinks_finds_its_thinking_beside_its_tool_calls(tmp_path: Path) -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    details = [{"type": "reasoning.text", "text": "let me look", "index": 0, "signature": "s"}]

    def chat(request: Request) -> Response:
        for message in request.body["messages"]:
            if message.get("tool_calls") and not (message.get("reasoning") or message.get("reasoning_content")):
                text = "thinking is enabled but reasoning_content is missing in assistant tool call message"
                return plain({"error": {"code": 400, "message": text}}, 400)
        if last(request) == "sunny":
            return say(request, {"content": "It is sunny.", "reasoning": "easy"})
        return say(request, {"content": None, "tool_calls": [call], "reasoning_details": details}, "tool_calls")

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=1)
        job.rows[0]["turns"] = [{"role": "tool", "name": "f", "content": "sunny"}]
        job.cut["target"]["thinking"] = True
        assert job.run() == 0
        assert len(gateway.requests) == 2 and job.facts()["ended"] == {"finished": 1}
        assert gateway.asked()[1]["messages"][1]["reasoning_details"] == details
        assert job.read()[0]["messages"][1]["reasoning_details"] == details


@pytest.mark.parametrize(
    ("call", "ended"),
    [
        ({"id": "a", "function": {"name": "f", "arguments": "{not json"}}, "tool_call_malformed"),
        ({"id": "a", "function": {"name": "f", "arguments": "[1]"}}, "tool_call_malformed"),
        ({"id": "a", "function": {"arguments": "{}"}}, "tool_call_malformed"),
        ({"id": None, "function": {"name": "f", "arguments": "{}"}}, "tool_call_malformed"),
        ({"id": "a", "function": {"name": "g", "arguments": "{}"}}, "tool_result_missing"),
        ({"id": "a", "function": {"name": "f", "arguments": ""}}, "finished"),
    ],
)
def test_a_call_that_nothing_answers_ends_the_conversation_as_data(
    tmp_path: Path, call: dict[str, Any], ended: str
) -> None:
    def chat(request: Request) -> Response:
        if last(request) == "sunny":
            return say(request, {"content": "done"})
        return say(request, {"content": None, "tool_calls": [call]}, "tool_calls")

    with Scripted(chat) as gateway:
        job = Job(tmp_path, gateway, rows=1)
        job.rows[0]["turns"] = [{"role": "tool", "name": "f", "content": "sunny"}]
        assert job.run() == 0
        assert job.facts()["ended"] == {ended: 1} and job.facts()["rows"]["rejected"] == {}
        assert job.read()[0]["messages"][1]["tool_calls"] == [call]  # what the target said is kept as it is


def test_endpoints_that_would_not_sample_as_asked_get_no_request(tmp_path: Path, capsys) -> None:
    plainly = {**ENDPOINTS[1], "tag": "gamma/fp8", "provider_name": "Gamma", "supported_parameters": ["tools"]}
    with Scripted(say, [*ENDPOINTS, plainly]) as gateway:
        job = Job(tmp_path / "a", gateway, rows=1)
        job.cut["gateway"]["policy"]["fixed_sampling"] = {"beta": {"temperature": 1.0, "top_p": 0.95}}
        for temperature, left in [(None, ["alpha/int4", "beta/fp8", "gamma/fp8"]), (0.5, ["alpha/int4"]),
                                  (1.0, ["alpha/int4", "beta/fp8"])]:  # fmt: skip
            job.cut["generate"].update(temperature=temperature, seed=len(gateway.requests),
                                       on_changed_request="rebuy")  # fmt: skip
            assert job.run() == 0
            assert gateway.asked()[-1]["provider"]["only"] == left
        said = capsys.readouterr().err
        assert "beta/fp8 takes only temperature=1, asked is 0.5" in said and "gamma/fp8 does not take temp" in said
        job.cut["gateway"]["policy"]["fixed_sampling"]["alpha"] = {"temperature": 1.0}
        job.cut["generate"]["temperature"] = 0.5
        job.providers.unlink()
        assert job.run() == ExitCode.POLICY_EMPTY
        assert "generate.temperature" in capsys.readouterr().err


# Answers that go on where they were cut ---------------------------------------------------------------------------


def server(limit: int, text: str = "abcdefghij", **odd: Any):  # noqa: ANN201
    """An OpenAI-compatible server with one token a character; every answer is cut after `limit` of them."""

    def chat(request: Request) -> Response:
        body = request.body
        prompt = body.get("prompt") or [7, 8]
        said = len(prompt) - 2
        piece = text[said : said + limit]
        finish = "length" if said + limit < len(text) else "stop"
        ids = [ord(letter) for letter in piece]
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "token_ids": ids}
        choice |= {"text": piece} if "prompt" in body else {"message": {"role": "assistant", "content": piece}}
        choice |= odd
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return plain({"id": "x", "model": "m", "prompt_token_ids": prompt, "choices": [choice], "usage": usage})

    return chat


def continuing(folder: Path, gateway: Scripted, rows: int = 1) -> Job:
    job = Job(folder, gateway, rows=rows, kind="openai")
    job.cut["target"]["name"] = "maker/target"
    job.cut["generate"]["on_length"] = "continue"
    job.runtime.update(budget_usd=0.0)
    job.runtime["gateway"]["api_key_file"] = None
    return job


def test_a_cut_answer_goes_on_from_exactly_the_tokens_that_were_generated(tmp_path: Path) -> None:
    with Scripted(server(4)) as gateway:
        job = continuing(tmp_path, gateway)
        assert job.run() == 0
        row, (first, *rest) = job.read()[0], gateway.requests
        assert row["messages"][-1]["content"] == "abcdefghij" and len(row["messages"]) == 2
        (answer,) = row["answers"]
        assert answer["token_ids"] == [ord(x) for x in "abcdefghij"] and answer["prompt_token_ids"] == [7, 8]
        assert answer["finish_reason"] == "stop" and answer["pieces"] == 3
        assert answer["usage"]["completion_tokens"] == 10 and answer["usage"]["prompt_tokens"] == 2
        assert first.path.endswith("/chat/completions")
        assert [r.path.endswith("/v1/completions") for r in rest] == [True, True]
        assert rest[1].body["prompt"] == [7, 8, *(ord(x) for x in "abcdefgh")]
        assert job.facts()["ended"] == {"finished": 1} and job.facts()["tokens"]["completion"] == 10
        assert job.run() == 0 and len(gateway.requests) == 3  # all of it is in the vault


def test_an_answer_that_goes_on_too_long_stays_cut_and_other_policies_use_its_first_piece(tmp_path: Path) -> None:
    with Scripted(server(2)) as gateway:
        job = continuing(tmp_path, gateway)
        job.cut["generate"]["max_pieces"] = 3
        assert job.run() == 0
        assert job.read()[0]["messages"][-1]["content"] == "abcdef" and job.facts()["ended"] == {"length": 1}
        job.cut["generate"]["on_length"] = "keep"
        assert job.run() == 0
        assert job.read()[0]["messages"][-1]["content"] == "ab" and len(gateway.requests) == 3
        assert "pieces" not in job.read()[0]["answers"][0]


@pytest.mark.parametrize(
    "chat",
    [server(4, token_ids=None), server(4, text="abc\ufffdefghij"), server(4, text="    efghij"),
     server(4, message={"role": "assistant", "content": None, "reasoning_content": "hm"})],
    ids=["no ids", "half a character", "nothing said", "inside reasoning"],
)  # fmt: skip
def test_an_answer_that_cannot_be_joined_exactly_stays_cut(tmp_path: Path, chat: Any) -> None:
    with Scripted(chat) as gateway:
        job = continuing(tmp_path, gateway)
        job.runtime["max_attempts"] = 1
        job.run()
        assert len(gateway.requests) == 1


def test_a_piece_that_fails_leaves_the_beginning(tmp_path: Path) -> None:
    good = server(4)

    def chat(request: Request) -> Response:
        if "prompt" in request.body:
            return plain({"object": "error", "message": "maximum context length is 6 tokens", "code": 400}, 400)
        return good(request)

    with Scripted(chat) as gateway:
        job = continuing(tmp_path, gateway)
        assert job.run() == 0
        assert job.read()[0]["messages"][-1]["content"] == "abcd" and job.facts()["ended"] == {"length": 1}
