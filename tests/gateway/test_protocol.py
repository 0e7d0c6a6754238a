"""Requests and replies as data: one behaviour per row of the gateway's error table."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eyrie.errors import ExitCode, InputError, MissingError
from eyrie.gateway.clients import base_url
from eyrie.gateway.errors import Blame, http_fault, inband_fault
from eyrie.gateway.key import ApiKey, read_key
from eyrie.gateway.providers import Endpoint, ProviderList
from eyrie.gateway.reply import Expected, Reply, Verdict, assistant_message, classify, token_ids
from eyrie.gateway.request import RequestBuilder, Sampling, headers, streams

SECRET = "sk-" + "or-v1-" + "0123456789abcdef0123"
ENDPOINTS = (
    Endpoint("alpha/int4", "Alpha", "int4", 0, 99.0, 1000, None, "0.000001", "0.000002"),
    Endpoint("beta/fp8", "Beta", "fp8", 0, 99.0, 1000, 500, "0.0000005", "0.000003"),
)
LIST = ProviderList("openrouter", "m", {"canonical_slug": "m-0127"}, ENDPOINTS, {"quantizations": ["int4", "fp8"]})
BUILDER = RequestBuilder("openrouter", "m", Sampling(100, 0.5, None, 7), True, LIST)
ASK = [{"role": "user", "content": "hello"}]


def body(**change: Any) -> dict[str, Any]:
    return json.loads(replace(BUILDER, **change).build(ASK, None).body)


def judged(choice: dict[str, Any] | None = None, paid: bool = True, **top: Any) -> Reply:
    base = {"finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    value = {"id": "gen-1", "model": "m", "provider": "Alpha", "choices": [{**base, **(choice or {})}],
             "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.0001}, **top}  # fmt: skip
    return classify(200, {}, json.dumps(value).encode(), Expected(LIST, "openrouter", paid))


def test_a_paid_request_is_bound_to_the_policy_by_full_tags() -> None:
    sent = body()
    assert sent["provider"]["only"] == ["alpha/int4", "beta/fp8"] and sent["provider"]["allow_fallbacks"] is True
    assert sent["provider"]["max_price"] == {"prompt": "1", "completion": "3"}
    assert sent["provider"]["quantizations"] == ["fp8", "int4"] and sent["reasoning"] == {"enabled": True}
    assert "models" not in sent and sent["stream"] is False


def test_an_endpoint_with_written_evidence_passes_the_quantization_filter_too() -> None:
    undeclared = replace(ENDPOINTS[0], tag="gamma", quantization=None)
    sent = body(providers=replace(LIST, accepted=(*ENDPOINTS, undeclared)))
    assert sent["provider"]["quantizations"] == ["fp8", "int4", "unknown"] and "gamma" in sent["provider"]["only"]


def test_a_row_with_tools_goes_only_where_tools_are_known() -> None:
    able = replace(ENDPOINTS[1], supported_parameters=("tools",))
    builder = replace(BUILDER, providers=replace(LIST, accepted=(ENDPOINTS[0], able)))
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert json.loads(builder.build(ASK, tools).body)["provider"]["only"] == ["beta/fp8"]
    assert json.loads(builder.build(ASK, None).body)["provider"]["only"] == ["alpha/int4", "beta/fp8"]
    assert json.loads(BUILDER.build(ASK, tools).body)["provider"]["only"] == ["alpha/int4", "beta/fp8"]  # 404 says it


def test_the_data_policy_travels_with_the_request_and_what_drops_hosts_in_silence_does_not() -> None:
    policy = {"data_collection": "deny", "zdr": True, "distillable": True}
    block = body(providers=replace(LIST, policy=policy))["provider"]
    assert block["data_collection"] == "deny" and block["zdr"] is True and block["enforce_distillable_text"] is True
    assert not {"require_parameters", "order", "sort", "ignore"} & set(block)
    assert "zdr" not in body()["provider"]


def test_whom_to_ask_first_is_in_the_body_and_not_in_the_fingerprint() -> None:
    plain, fast = BUILDER.build(ASK, None), replace(BUILDER, sort="throughput").build(ASK, None)
    assert json.loads(fast.body)["provider"]["sort"] == "throughput" and fast.fingerprint == plain.fingerprint


def test_streaming_is_in_the_body_and_not_in_the_fingerprint() -> None:
    plain, streamed = BUILDER.build(ASK, None), replace(BUILDER, stream=True).build(ASK, None)
    assert json.loads(streamed.body)["stream"] is True and plain.fingerprint == streamed.fingerprint
    assert "stream_options" not in json.loads(streamed.body)  # OpenRouter always tells the usage
    assert body(kind="openai", stream=True)["stream_options"] == {"include_usage": True}  # the others when asked


def test_only_long_answers_through_openrouter_are_streamed_by_themselves() -> None:
    assert [streams(None, kind, n) for kind in ("openrouter", "openai", "embedded") for n in (256, 16384)] == [
        False, True, False, False, False, False]  # fmt: skip
    assert streams(False, "openrouter", 16384) is False and streams(True, "embedded", 1) is True


def test_each_request_asks_for_cache_and_metadata_and_a_retry_of_a_bad_reply_renews_the_cache() -> None:
    first, again = headers("openrouter"), headers("openrouter", renew=True)
    assert first["X-OpenRouter-Cache"] == "true" and first["X-OpenRouter-Metadata"] == "enabled"
    assert "X-OpenRouter-Cache-Clear" not in first and again == {**first, "X-OpenRouter-Cache-Clear": "true"}
    assert headers("openai") == headers("embedded", renew=True) == {}


def test_reasoning_in_the_history_has_the_name_that_the_server_reads() -> None:
    said = {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_details": [{"text": "r"}]}
    history = [*ASK, said, *ASK]
    assert json.loads(BUILDER.build(history, None).body)["messages"][1] == said
    local = replace(BUILDER, kind="openai").build(history, None)
    assert json.loads(local.body)["messages"][1] == {
        "role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}  # fmt: skip


def test_a_continuation_is_token_ids_and_is_told_from_any_other() -> None:
    builder = replace(BUILDER, kind="openai")
    one, two = builder.build_continuation([1, 2], [3]), builder.build_continuation([1, 2], [3, 4])
    sent = json.loads(one.body)
    assert one.path == "completions" and sent["prompt"] == [1, 2, 3] and sent["max_tokens"] == 100
    assert sent["return_token_ids"] is True and "messages" not in sent and one.fingerprint != two.fingerprint


@pytest.mark.parametrize("kind", ["openai", "embedded"])
def test_a_free_request_asks_for_token_ids_and_has_no_provider_block(kind: str) -> None:
    sent = body(kind=kind)
    assert "provider" not in sent and "reasoning" not in sent
    assert sent["return_token_ids"] is True and sent["chat_template_kwargs"]["thinking"] is True


def test_the_fingerprint_follows_what_decides_the_text_and_nothing_else() -> None:
    def mark(builder: RequestBuilder, tools: Any = None, repetition: int = 0) -> str:
        return builder.build(ASK, tools, repetition).fingerprint

    same = [BUILDER, replace(BUILDER, providers=replace(LIST, accepted=ENDPOINTS[:1]))]
    assert len({mark(b) for b in same}) == 1  # an endpoint that went away changes no request
    other_policy = replace(LIST, policy={"quantizations": ["fp8"]})
    different = [
        mark(BUILDER), mark(BUILDER, [{"type": "function"}]), mark(BUILDER, repetition=1),
        mark(replace(BUILDER, thinking=False)), mark(replace(BUILDER, identity_model="n")),
        mark(replace(BUILDER, sampling=Sampling(99, 0.5, None, 7))), mark(replace(BUILDER, providers=other_policy)),
        mark(replace(BUILDER, kind="openai")),
    ]  # fmt: skip
    assert len(set(different)) == len(different)


def test_equal_requests_are_equal_bytes() -> None:
    one = BUILDER.build([{"role": "user", "content": "x"}], None)
    two = BUILDER.build([{"content": "x", "role": "user"}], None)
    assert one.body == two.body


def test_the_worst_case_takes_every_byte_as_a_token_at_the_highest_price() -> None:
    text = "\u4e2d" * 1000
    worst = BUILDER.build([{"role": "user", "content": text}], None).worst_case
    assert worst >= 3000 * Decimal("0.000001") + 100 * Decimal("0.000003")


def test_endpoints_that_cannot_give_so_long_answers_are_left_out() -> None:
    assert [e.tag for e in LIST.able(501).accepted] == ["alpha/int4"] and len(LIST.able(500).accepted) == 2


@pytest.mark.parametrize(
    ("status", "payload", "blame", "code"),
    [
        (400, {"error": {"code": 400, "message": "bad"}}, Blame.PERMANENT, None),
        (401, {"error": {"code": 401, "message": "no"}}, Blame.RUN, ExitCode.KEY_REFUSED),
        (402, {"error": {"code": 402, "message": "credits"}}, Blame.RUN, ExitCode.CREDITS_OUT),
        (403, {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["x"]}}}, Blame.PERMANENT, None),
        (403, {"error": {"code": 403, "message": "Key limit exceeded"}}, Blame.RUN, ExitCode.CREDITS_OUT),
        (404, {"error": {"code": 404, "message": "no endpoints"}}, Blame.RUN, ExitCode.POLICY_EMPTY),
        (408, {"error": {"code": 408, "message": "slow"}}, Blame.GATEWAY, None),
        (413, {"error": {"code": 413, "message": "large"}}, Blame.PERMANENT, None),
        (422, {"error": {"code": 422, "message": "odd"}}, Blame.PERMANENT, None),
        (429, {"error": {"code": 429, "message": "rate"}}, Blame.OVERLOAD, None),
        (500, {"error": {"code": 500, "message": "oops"}}, Blame.GATEWAY, None),
        (502, {"error": {"code": 502, "message": "down"}}, Blame.GATEWAY, None),
        (503, {"error": {"code": 503, "message": "none"}}, Blame.OVERLOAD, None),
        (529, {"error": {"code": 529, "message": "full"}}, Blame.OVERLOAD, None),
        (400, {"error": {"code": 400, "message": "m", "metadata": {"error_type": "rate_limit_exceeded"}}},
         Blame.OVERLOAD, None),
    ],
)  # fmt: skip
def test_http_errors_say_whose_fault_they_are(
    status: int, payload: dict[str, Any], blame: Blame, code: ExitCode | None
) -> None:
    fault = http_fault(status, {}, json.dumps(payload).encode())
    assert fault.blame is blame and (code is None or fault.code is code)


def test_timeouts_may_have_been_billed_and_other_errors_not() -> None:
    maybe = {
        s: http_fault(s, {}, b'{"error":{"message":"x"}}').maybe_billed for s in (400, 429, 500, 502, 408, 504, 524)
    }
    assert [s for s, billed in maybe.items() if billed] == [408, 504, 524]


def test_an_html_page_is_the_gateways_fault_and_a_block_at_the_edge_an_overload() -> None:
    assert http_fault(502, {}, b"<html>").blame is Blame.GATEWAY
    assert http_fault(403, {}, b"error code: 1015").blame is Blame.OVERLOAD


def test_retry_after_is_read_from_header_or_body() -> None:
    assert http_fault(429, {"retry-after": "3"}, b"{}").retry_after == 3
    assert inband_fault({"code": 429, "metadata": {"retry_after": 2}}, billed=False).retry_after == 2
    assert http_fault(429, {"retry-after": "Wed, 21 Oct"}, b"{}").retry_after is None


def test_the_providers_own_words_are_in_the_detail() -> None:
    fault = inband_fault({"code": 502, "message": "Provider returned error",
                          "metadata": {"provider_name": "Beta", "raw": "cuda died"}}, billed=False)  # fmt: skip
    assert "Beta" in fault.detail and "cuda died" in fault.detail


@pytest.mark.parametrize(
    ("reply", "reason", "blame"),
    [
        (judged(error={"code": 502, "message": "x"}), "provider_unavailable", Blame.GATEWAY),
        (judged(error={"code": "server_error", "message": "x"}), "provider_error", Blame.GATEWAY),
        (judged(error={"code": 429, "message": "x"}), "rate_limited", Blame.OVERLOAD),
        (judged(error={"code": 401, "message": "x"}), "provider_error", Blame.GATEWAY),
        (judged(error={"code": 400, "message": "x"}), "invalid_request", Blame.ROW),
        (judged({"error": {"code": 502, "message": "x"}, "finish_reason": "error"}), "provider_unavailable",
         Blame.GATEWAY),
        (judged({"finish_reason": "error"}), "provider_error", Blame.GATEWAY),
        (judged(choices=[]), "no_choices", Blame.GATEWAY),
        (judged({"finish_reason": None, "message": {"content": ""}}), "empty_cold_start", Blame.GATEWAY),
        (judged({"message": {"content": None}}), "empty", Blame.ROW),
        (judged({"message": {}}), "empty", Blame.ROW),
        (judged({"message": {"content": " \n", "reasoning": "thought"}}), "empty", Blame.ROW),
        (judged({"message": {"content": "", "refusal": "I cannot"}}), "refused", Blame.ROW),
        (judged({"finish_reason": "content_filter"}), "moderated", Blame.ROW),
        (judged({"finish_reason": None}), "finish_reason", Blame.ROW),
        (judged(provider="Gamma"), "wrong_provider", Blame.ROW),
        (judged(model="n"), "wrong_model", Blame.ROW),
    ],
)  # fmt: skip
def test_a_200_that_is_no_answer_is_never_data(reply: Reply, reason: str, blame: Blame) -> None:
    assert reply.verdict is None and reply.fault is not None
    assert (reply.fault.reason, reply.fault.blame) == (reason, blame)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b"", "empty_body"), (b"<html>", "html_body"), (b'{"choices": [', "cut_body"), (b"[]", "not_an_object"),
     (b"\xff\xfe{", "cut_body")],
)  # fmt: skip
def test_a_200_that_is_no_json_is_a_fault_whose_bill_is_unknown(raw: bytes, reason: str) -> None:
    reply = classify(200, {"x-generation-id": "gen-9"}, raw, Expected(LIST, "openrouter", True))
    assert reply.fault is not None and reply.fault.reason == reason
    assert reply.cost is None and reply.generation_id == "gen-9"
    assert classify(200, {}, raw, Expected(LIST, "openai", False)).cost == 0


def test_answers_are_ok_or_cut() -> None:
    assert judged().verdict is Verdict.OK and judged(model="m-0127").verdict is Verdict.OK
    cut = judged({"finish_reason": "length", "message": {"content": None, "reasoning": "still thinking"}})
    assert cut.verdict is Verdict.LENGTH
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert judged({"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [call]}}).verdict


def test_the_cost_is_what_was_charged_in_decimal() -> None:
    assert judged().cost == Decimal("0.0001") and judged(paid=False).cost == 0
    assert judged(usage={"prompt_tokens": 1}).cost is None and judged(usage=None).cost is None


def test_history_keeps_what_the_target_said_verbatim() -> None:
    said = {"role": "assistant", "content": None, "reasoning": "r", "reasoning_content": "c",
            "reasoning_details": [{"data": "x"}], "tool_calls": [{"id": "1"}]}  # fmt: skip
    assert assistant_message({"choices": [{"message": said}]}) == said
    assert assistant_message({"choices": [{"message": {"content": None}}]})["content"] == ""
    parts = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert assistant_message({"choices": [{"message": parts}]})["content"] == "ab"
    assert assistant_message({"choices": [{"text": "plain"}]}) == {"role": "assistant", "content": "plain"}
    detailed = {"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]}
    assert assistant_message({"choices": [{"message": detailed}]})["reasoning"] == "r"


def test_token_ids_are_kept_when_they_are_ids() -> None:
    assert token_ids({"prompt_token_ids": [1], "choices": [{"token_ids": [2, 3]}]}) == {
        "prompt_token_ids": [1], "token_ids": [2, 3]}  # fmt: skip
    assert token_ids({"choices": [{"token_ids": None, "prompt_token_ids": ["x"]}]}) == {}


def test_a_key_shows_itself_to_nobody() -> None:
    key = ApiKey(SECRET)
    assert SECRET not in repr(key) + str(key) + f"{key}" and key.headers() == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in key.redact(f"invalid key {SECRET}")
    assert "sk-" + "or-v1-other" not in key.redact("you sent sk-" + "or-v1-other0123456789abcdef")
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_key_comes_from_its_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f" {SECRET}\n")
    assert read_key("openrouter", str(file), {}).headers() == ApiKey(SECRET).headers()
    assert read_key("openrouter", None, {"OPENROUTER_API_KEY": SECRET})
    assert not read_key("openai", None, {"OPENROUTER_API_KEY": SECRET})  # never sent to another server
    assert not read_key("embedded", str(file), {})
    file.write_text(f"KEY={SECRET}\nmore")
    with pytest.raises(InputError, match="alone") as caught:
        read_key("openrouter", str(file), {})
    assert SECRET not in str(caught.value)
    with pytest.raises(MissingError, match="cannot be read"):
        read_key("openrouter", str(tmp_path / "none"), {})


@pytest.mark.parametrize("url", ["ftp://x", "localhost:1", "http://user:pass@host/v1", None])
def test_an_address_that_cannot_be_one_is_refused(url: str | None) -> None:
    with pytest.raises(InputError, match=r"gateway\.base_url"):
        base_url("openai", url)
