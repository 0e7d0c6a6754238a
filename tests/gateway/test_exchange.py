"""One request over a real connection: every row of the gateway's error table, and what a connection can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import httpx
import pytest
import trio

from eyrie.errors import ExitCode
from eyrie.gateway.errors import Blame
from eyrie.gateway.exchange import Patience, exchange
from eyrie.gateway.providers import Endpoint, ProviderList
from eyrie.gateway.quality import Quality
from eyrie.gateway.reply import Expected, Reply, Verdict
from tests.gateway.wire import USAGE, Response, Wire, as_chunks, chunk, events, plain, reply

ENDPOINTS = (
    Endpoint("alpha/int4", "Alpha", "int4", 0, 99.0, 1000, None, "0.000001", "0.000002"),
    Endpoint("beta/fp8", "Beta", "fp8", 0, 99.0, 1000, 500, "0.0000005", "0.000003"),
)
LIST = ProviderList("openrouter", "maker/target", {"canonical_slug": "maker/target-0127"}, ENDPOINTS, {})
EXPECTED = Expected(LIST, "openrouter", True, None, Quality(loop_window=500))
PATIENT = Patience(5.0, 10.0)
CANARY = b"canary0123456789"


def ask(response: Response, expected: Expected = EXPECTED, patience: Patience = PATIENT) -> tuple[Reply, list[str]]:
    """The judged reply and the generation ids that were noted before the body was read."""
    noted: list[str] = []

    async def note(generation: str) -> None:
        noted.append(generation)

    async def main(url: str) -> Reply:
        async with httpx.AsyncClient(timeout=httpx.Timeout(5.0, read=patience.silence), trust_env=False) as client:
            return await exchange(
                client, url, b"{}", {}, expected, patience, note=note, redact=lambda raw: raw.replace(CANARY, b"[key]")
            )  # fmt: skip

    with Wire(lambda request: response) as wire:
        return trio.run(main, f"{wire.url}/chat/completions"), noted


def error(code: Any, message: str = "words", metadata: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **({"metadata": metadata} if metadata else {}), **more}}


@dataclass(frozen=True)
class Row:
    """What a response must be taken for."""

    response: Callable[[], Response]
    blame: Blame
    reason: str
    cost: str | None = "0"  # dollars; None = not known, to be asked for
    code: ExitCode | None = None
    retry_after: float | None = None


def http(status: int, *more: Any, **fields: Any) -> Callable[[], Response]:
    return lambda: plain(error(status, *more, **fields), status)


def edge(status: int, page: bytes) -> Callable[[], Response]:
    return lambda: plain(page, status, Content_Type="text/html")


def inband(value: dict[str, Any]) -> Callable[[], Response]:
    return lambda: plain({**value, "user_id": "u"}, X_Generation_Id="gen-1")


LAST = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
TABLE = {
    "an invalid request is final": Row(http(400), Blame.PERMANENT, "invalid_request"),
    "a prompt beyond the context is final":
        Row(http(400, "too long", {"error_type": "context_length_exceeded"}), Blame.PERMANENT, "context_length"),
    "a prompt against the content policy is final":
        Row(http(400, "no", {"error_type": "content_policy_violation"}), Blame.PERMANENT, "moderated"),
    "a refusal is final": Row(http(400, "no", {"error_type": "refusal"}), Blame.PERMANENT, "refused"),
    "a cap on tokens that follows from the credits ends the run":
        Row(http(400, "cap", {"error_type": "token_limit_exceeded"}), Blame.RUN, "credits_out",
            code=ExitCode.CREDITS_OUT),
    "a rate limit dressed as 400 is a rate limit":
        Row(http(400, "slow", {"error_type": "rate_limit_exceeded"}), Blame.OVERLOAD, "rate_limited"),
    "a bad key ends the run": Row(http(401), Blame.RUN, "key_refused", code=ExitCode.KEY_REFUSED),
    "no credits end the run although the body repeats it per fallback":
        Row(http(402, "You requested up to 9 tokens, but can only afford 3",
                 {"previous_errors": [{"provider": "Alpha", "code": 402}] * 9}),
            Blame.RUN, "credits_out", code=ExitCode.CREDITS_OUT),
    "moderation is the row's":
        Row(http(403, "flagged", {"reasons": ["violence"], "flagged_input": "..."}), Blame.PERMANENT, "moderated"),
    "a guardrail is the row's": Row(http(403, "blocked", {"patterns": ["x"]}), Blame.PERMANENT, "moderated"),
    "a key limit ends the run":
        Row(http(403, "Key limit exceeded (total limit)"), Blame.RUN, "credits_out", code=ExitCode.CREDITS_OUT),
    "a workspace budget ends the run":
        Row(http(403, "Workspace budget used up"), Blame.RUN, "credits_out", code=ExitCode.CREDITS_OUT),
    "nobody left under our constraints ends the run":
        Row(http(404, availability={"code": "constraint_filtered", "excluded_by": ["max_price"]}), Blame.RUN,
            "no_endpoint", code=ExitCode.POLICY_EMPTY),
    "a data policy that excludes all ends the run":
        Row(http(404, availability={"code": "privacy_restricted", "excluded_by": ["data_policy:training"]}), Blame.RUN,
            "no_endpoint", code=ExitCode.POLICY_EMPTY),
    "a model that was retired ends the run":
        Row(http(404, availability={"code": "model_deprecated"}), Blame.RUN, "no_endpoint",
            code=ExitCode.POLICY_EMPTY),
    "a row too long for the endpoints that are allowed is final":
        Row(http(404, availability={"code": "constraint_filtered",
                                    "excluded_by": ["allowed_providers", "context_length", "quantization"]}),
            Blame.PERMANENT, "context_length"),
    "endpoints that may come back are waited for":
        Row(http(404, availability={"code": "no_endpoints", "retryable": True}), Blame.OVERLOAD, "unavailable"),
    "408 may have been billed": Row(http(408), Blame.GATEWAY, "timeout", cost=None),
    "504 may have been billed": Row(http(504), Blame.GATEWAY, "timeout", cost=None),
    "524 from the edge may have been billed": Row(edge(524, b"<html>524"), Blame.GATEWAY, "timeout", cost=None),
    "412 is final": Row(http(412), Blame.PERMANENT, "invalid_request"),
    "413 is final": Row(http(413), Blame.PERMANENT, "too_large"),
    "422 is final": Row(http(422), Blame.PERMANENT, "unprocessable"),
    "429 is waited for as long as it says":
        Row(lambda: plain(error(429), 429, Retry_After="7"), Blame.OVERLOAD, "rate_limited", retry_after=7.0),
    "capacity that is exhausted is waited for":
        Row(http(429, "full", {"retry_after": 3}, availability={"code": "capacity_exhausted"}), Blame.OVERLOAD,
            "overloaded", retry_after=3.0),
    "a block at the edge is an overload":
        Row(edge(429, b"error code: 1015"), Blame.OVERLOAD, "blocked_at_the_edge"),
    "a forbidding page from the edge is an overload":
        Row(edge(403, b"<html>Attention Required"), Blame.OVERLOAD, "blocked_at_the_edge"),
    "a masked 500 is tried again": Row(http(500, "Internal", {"error_type": "server"}), Blame.GATEWAY, "server_error"),
    "502 is tried again": Row(http(502), Blame.GATEWAY, "provider_unavailable"),
    "a 502 page is tried again": Row(edge(502, b"<html>Bad gateway"), Blame.GATEWAY, "provider_unavailable"),
    "503 is an overload": Row(http(503), Blame.OVERLOAD, "unavailable"),
    "529 is an overload": Row(http(529, "o", {"error_type": "provider_overloaded"}), Blame.OVERLOAD, "overloaded"),
    "a status nobody documents is tried again": Row(http(599), Blame.GATEWAY, "http_599"),
    # Inside a 200.
    "an error inside a 200 is no empty answer": Row(inband(error(502)), Blame.GATEWAY, "provider_unavailable", None),
    "a rate limit inside a 200 slows all down": Row(inband(error(429)), Blame.OVERLOAD, "rate_limited", None),
    "an error code may be a word": Row(inband(error("server_error")), Blame.GATEWAY, "provider_error", None),
    "an error may be a mere string": Row(inband({"error": "oops"}), Blame.GATEWAY, "provider_error", None),
    "a provider's own 402 is not ours":
        Row(inband(error(402, "x", {"error_type": "payment_required"})), Blame.GATEWAY, "provider_error", None),
    "a provider's own 401 is not ours":
        Row(inband(error(401, "x", {"error_type": "authentication"})), Blame.GATEWAY, "provider_error", None),
    "one provider's 400 is not the last word": Row(inband(error(400)), Blame.ROW, "invalid_request", None),
    "one provider's context limit is not the last word":
        Row(inband(error(400, "x", {"error_type": "context_length_exceeded"})), Blame.ROW, "context_length", None),
    "an error next to partial content is an error":
        Row(lambda: plain(reply({"content": "half"}, "error", usage=None) | {"error": {"code": 502, "message": "x"}}),
            Blame.GATEWAY, "provider_unavailable", None),
    "finish_reason error is an error":
        Row(lambda: plain(reply({"content": "half"}, "error")), Blame.GATEWAY, "provider_error", "0.0001"),
    "an unknown finish_reason is no success":
        Row(lambda: plain(reply({"content": "x"}, "weird")), Blame.ROW, "finish_reason", "0.0001"),
    "an empty 200 is a failure": Row(lambda: plain(b"", X_Generation_Id="g"), Blame.GATEWAY, "empty_body", None),
    "blanks are a failure": Row(lambda: plain(b" \n \n"), Blame.GATEWAY, "empty_body", None),
    "an HTML page in a 200 is a failure": Row(lambda: plain(b"<html>hi"), Blame.GATEWAY, "html_body", None),
    "no choices are a failure": Row(lambda: plain(reply() | {"choices": []}), Blame.GATEWAY, "no_choices", "0.0001"),
    "a null choice is a failure":
        Row(lambda: plain(reply() | {"choices": [None]}), Blame.GATEWAY, "no_choices", "0.0001"),
    "null content is a failure": Row(lambda: plain(reply({"content": None})), Blame.ROW, "empty", "0.0001"),
    "a missing content is a failure": Row(lambda: plain(reply({})), Blame.ROW, "empty", "0.0001"),
    "a cold start that says nothing is tried again":
        Row(lambda: plain(reply({"content": ""}, None)), Blame.GATEWAY, "empty_cold_start", "0.0001"),
    "content that a filter took is the row's":
        Row(lambda: plain(reply({"content": "x"}, "content_filter")), Blame.ROW, "moderated", "0.0001"),
    "a refusal field is the row's":
        Row(lambda: plain(reply({"content": "", "refusal": "I cannot"})), Blame.ROW, "refused", "0.0001"),
    "tool calls that are announced and missing are no answer":
        Row(lambda: plain(reply({"content": "x"}, "tool_calls")), Blame.ROW, "tool_calls_missing", "0.0001"),
    "a provider outside the policy is refused":
        Row(lambda: plain(reply(provider="Gamma")), Blame.ROW, "wrong_provider", "0.0001"),
    "a provider named only by the router is checked too":
        Row(lambda: plain(reply(provider=None, openrouter_metadata={"endpoints": {"available": [
            {"provider": "Alpha", "selected": False}, {"provider": "Gamma", "selected": True}]}})),
            Blame.ROW, "wrong_provider", "0.0001"),
    "another model is refused": Row(lambda: plain(reply(model="maker/other")), Blame.ROW, "wrong_model", "0.0001"),
    "a leaked template marker is refused":
        Row(lambda: plain(reply({"content": "Sure.<|im_end|><|im_user|>"})), Blame.ROW, "leaked_marker", "0.0001"),
    "a loop up to max_tokens is refused":
        Row(lambda: plain(reply({"content": "and again " * 400}, "length")), Blame.ROW, "loop", "0.0001"),
    "a loop of tool calls is refused":
        Row(lambda: plain(reply({"content": None, "tool_calls": [
            {"id": "a", "function": {"name": "search", "arguments": '{"q": "x"}'}}] * 90}, "tool_calls")),
            Blame.ROW, "loop", "0.0001"),
    # In a stream.
    "an error in the middle of a stream is an error":
        Row(lambda: events([chunk({"content": "x"}), {**chunk(), **error(502), "choices": [LAST]}]), Blame.GATEWAY,
            "provider_unavailable", None),
    "an error chunk with empty choices is no empty success":
        Row(lambda: events([chunk({"content": "x"}), chunk(**error(429, "x", {"error_type": "rate_limit_exceeded"}))]),
            Blame.OVERLOAD, "rate_limited", None),
    "a stream without its end is no answer":
        Row(lambda: events([chunk({"content": "x"})], done=False), Blame.GATEWAY, "cut_stream", None),
    "an error before the first token comes as plain JSON":
        Row(http(429), Blame.OVERLOAD, "rate_limited"),
    "a stream of comments alone is no answer":
        Row(lambda: events([b": OPENROUTER PROCESSING\n\n"], done=False), Blame.GATEWAY, "cut_stream", None),
    # On the way.
    "a connection that breaks in the body may have been billed":
        Row(lambda: Response([b'{"choices": ['], headers={"X-Generation-Id": "g"}, chunked=True, ends=False),
            Blame.GATEWAY, "ReadError|RemoteProtocolError", None),
    "a stream whose connection breaks may have been billed":
        Row(lambda: events([chunk({"content": "x"})], done=False, ends=False), Blame.GATEWAY,
            "ReadError|RemoteProtocolError", None),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_each_way_to_fail_is_told_from_the_others(row: Row) -> None:
    found, _ = ask(row.response())
    assert found.verdict is None and found.fault is not None
    assert found.fault.blame is row.blame and found.fault.reason in row.reason.split("|"), found.fault
    assert found.cost == (None if row.cost is None else Decimal(row.cost))
    assert row.code is None or found.fault.code is row.code
    assert found.fault.retry_after == row.retry_after
    assert found.fault.maybe_billed == (row.cost is None)


GOOD = {
    "usage is what was charged, not tokens times price": (lambda: plain(reply()), "0.0001"),
    "missing usage is not free": (lambda: plain({k: v for k, v in reply().items() if k != "usage"}), None),
    "a null cost is not free": (lambda: plain(reply(usage={**USAGE, "cost": None})), None),
    "usage that is no object is not free": (lambda: plain(reply(usage="see invoice")), None),
    "usage comes in the last chunk of a stream": (lambda: events(as_chunks(reply({"content": "hello you"}))), "0.0001"),
    "a stream that says it is done needs no usage": (lambda: events(as_chunks(reply())[:-1]), None),
    "keep-alive comments and pauses are no part of the text":
        (lambda: events([b": OPENROUTER PROCESSING\n\n", 0.05, *as_chunks(reply()), b": bye\n\n"]), "0.0001"),
    "blanks before the JSON are waiting, not text": (lambda: plain(b"\n \n" + plain(reply()).steps[0]), "0.0001"),
    "a server that cannot stream answers whole": (lambda: plain(reply()), "0.0001"),
    "the model's dated name is the model": (lambda: plain(reply(model="maker/target-0127")), "0.0001"),
    "a reply without a provider's name is taken": (lambda: plain(reply(provider=None)), "0.0001"),
    "a refusal in words is what the target says": (lambda: plain(reply({"content": "I'm sorry, no."})), "0.0001"),
}  # fmt: skip


@pytest.mark.parametrize(("response", "cost"), GOOD.values(), ids=GOOD)
def test_an_answer_is_taken_with_its_cost(response: Callable[[], Response], cost: str | None) -> None:
    found, _ = ask(response())
    assert found.fault is None and found.verdict is Verdict.OK
    assert found.cost == (None if cost is None else Decimal(cost))


@pytest.mark.parametrize(("reasons", "seconds"), [("silent", Patience(0.2, 30.0)), ("deadline", Patience(5.0, 0.4))])
@pytest.mark.parametrize("streamed", [False, True])
def test_silence_and_dripping_end_and_count_against_the_row(reasons: str, seconds: Patience, streamed: bool) -> None:
    whole = b"".join(step for step in events(as_chunks(reply())).steps if isinstance(step, bytes))
    pause = 1.0 if reasons == "silent" else 0.05  # a drip is never silent for long
    drip: list[bytes | float] = [part for i in range(60) for part in (whole[i : i + 1], pause)]
    kind = {"Content-Type": "text/event-stream"} if streamed else {}
    response = Response(drip, headers={"X-Generation-Id": "gen-7", **kind}, chunked=True)
    found, noted = ask(response, patience=seconds)
    assert found.fault is not None and found.fault.reason == reasons
    assert found.fault.blame is Blame.ROW and found.fault.maybe_billed and found.cost is None
    assert noted == ["gen-7"] and found.generation_id == "gen-7"  # its bill can be asked for
    assert ask(response, replace(EXPECTED, paid=False), seconds)[0].cost == 0


def test_an_address_where_nothing_listens_was_never_billed() -> None:
    async def main() -> Reply:
        async def note(generation: str) -> None:
            raise AssertionError(generation)

        async with httpx.AsyncClient(trust_env=False) as client:
            return await exchange(client, "http://127.0.0.1:9/x", b"{}", {}, EXPECTED, Patience(1, 1), note=note,
                                  redact=bytes)  # fmt: skip

    found = trio.run(main)
    assert found.fault is not None and found.fault.blame is Blame.GATEWAY and found.cost == 0


def test_a_key_that_comes_back_in_an_answer_or_an_error_is_taken_out() -> None:
    whole = {"content": CANARY.decode()}
    for response in (plain(reply(whole)), events(as_chunks(reply(whole), 3)), plain(error(502, CANARY.decode()))):
        found, _ = ask(response)
        assert CANARY not in found.raw and b"[key]" in found.raw
        assert found.fault is None or CANARY.decode() not in found.fault.detail


def test_the_endpoints_that_failed_are_named() -> None:
    metadata = {"attempts": [{"provider": "Alpha", "status": 503}, {"provider": "Beta", "status": 200}]}
    assert ask(plain(reply(openrouter_metadata=metadata)))[0].tried == (("Alpha", 503),)
    previous = {"previous_errors": [{"provider": "Alpha", "code": 429}], "provider_name": "Beta"}
    assert ask(plain(error(429, "x", previous), 429))[0].tried == (("Alpha", 429), ("Beta", 429))


@pytest.mark.parametrize(
    ("thinking", "message", "tokens", "reason"),
    [
        (True, {"content": "x"}, 0, "reasoning_missing"),
        (True, {"content": "x"}, 9, "reasoning_missing"),  # billed and hidden: what was generated is not known
        (True, {"content": "x", "reasoning": "r"}, 9, None),
        (True, {"content": "x", "reasoning_content": "r"}, 0, None),
        (True, {"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]}, 0, None),
        (False, {"content": "x"}, 0, None),
        (False, {"content": "x"}, 5, "reasoned"),
        (False, {"content": "x", "reasoning": "r"}, 0, "reasoned"),
        (None, {"content": "x"}, 5, None),
    ],
)
def test_a_host_that_ignores_the_reasoning_switch_is_refused(
    thinking: bool | None, message: dict[str, Any], tokens: int, reason: str | None
) -> None:
    usage = {**USAGE, "completion_tokens_details": {"reasoning_tokens": tokens}}
    found, _ = ask(plain(reply(message, usage=usage)), replace(EXPECTED, thinking=thinking))
    assert (found.fault.reason if found.fault else None) == reason
    assert found.fault is None or (found.fault.blame is Blame.ROW and found.fault.tries == 2)
    other, _ = ask(plain(reply(message, usage=usage)), replace(EXPECTED, thinking=thinking, kind="openai"))
    assert other.fault is None  # a server without a reasoning parser shows it in the text


def test_an_answer_paid_through_the_users_own_provider_key_is_marked() -> None:
    assert ask(plain(reply(usage={**USAGE, "is_byok": True})))[0].byok
