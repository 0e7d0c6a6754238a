"""Streams as servers send them, cut anywhere: the reply is the one that no streaming gives, or a named fault."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from eyrie.gateway.stream import Body, assemble
from tests.gateway.wire import as_chunks, chunk, events, reply

ODD = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg \U0001f600\u4e2d"
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"city": "K\u00f6ln"}'}}
CALL_2 = {"id": "functions.g:1", "type": "function", "function": {"name": "g", "arguments": "{}"}}
THOUGHT = "so \u2028 then"
WHOLE = {
    "text": reply({"content": ODD}),
    "reasoning": reply({"content": "42", "reasoning": THOUGHT,
                        "reasoning_details": [{"type": "reasoning.text", "text": THOUGHT, "format": "unknown",
                                               "index": 0}]}),
    "reasoning_content": reply({"content": "42", "reasoning_content": "hm"}),
    "tool calls": reply({"content": None, "tool_calls": [CALL, CALL_2]}, "tool_calls"),
    "cut": reply({"content": "half an"}, "length"),
}  # fmt: skip


def assembled(pieces: Sequence[bytes]) -> Body:
    async def give() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return trio.run(lambda: assemble(give()))


def stream(chunks: list[Any], **more: Any) -> bytes:
    return b"".join(step for step in events(chunks, **more).steps if isinstance(step, bytes))


def value(body: Body) -> dict[str, Any]:
    return json.loads(body.raw)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_gives_the_reply_that_no_streaming_gives(name: str, size: int) -> None:
    body = assembled([stream(as_chunks(WHOLE[name], size))])
    assert body.problem is None and value(body) == WHOLE[name]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4000), max_size=40))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    data = stream(as_chunks(WHOLE["text"], 2) + as_chunks(WHOLE["text"], 2)[:0])
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    body = assembled([data[a:b] for a, b in zip(places, places[1:], strict=False)])
    assert value(body) == WHOLE["text"]


def test_single_bytes_carriage_returns_comments_and_other_fields_are_all_one() -> None:
    data = b"\xef\xbb\xbf: OPENROUTER PROCESSING\r\n\r\n" + stream(as_chunks(WHOLE["text"]))
    data = data.replace(b"\n\n", b"\r\n\r\n: ping\r\n\r\nevent: message\r\nid: 9\r\nretry: 10\r\n")
    body = assembled([data[i : i + 1] for i in range(len(data))])
    assert body.problem is None and value(body) == WHOLE["text"]


def test_data_without_a_space_over_two_lines_and_without_a_last_blank_line_is_read() -> None:
    data = b'data:{"id": "x", \ndata:"choices": [{"delta": {"content": "y"}, "finish_reason": "stop"}]}\n\ndata: [DONE]'
    body = assembled([data])
    assert body.problem is None and value(body)["choices"][0]["message"]["content"] == "y"


def test_deltas_of_tool_calls_are_joined_by_index_however_they_interleave() -> None:
    def part(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **more, "function": {"arguments": arguments}}]})

    chunks = [
        chunk({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
                              {"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}]}),
        part(0, '{"x"'), part(1, "{"), part(0, ": 1}", id="a"), part(1, "}"), chunk({}, "tool_calls"),
    ]  # fmt: skip
    calls = value(assembled([stream(chunks)]))["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_reasoning_details_are_joined_by_index_and_kept_apart_by_type() -> None:
    def part(**detail: Any) -> dict[str, Any]:
        return chunk({"reasoning_details": [detail]})

    chunks = [
        part(type="reasoning.text", index=0, text="a"), part(type="reasoning.text", index=0, text="b", signature="s"),
        part(type="reasoning.encrypted", index=1, data="x"), part(type="reasoning.summary", index=2, summary="in "),
        part(type="reasoning.summary", index=2, summary="short"), chunk({"content": "."}, "stop"),
    ]  # fmt: skip
    assert value(assembled([stream(chunks)]))["choices"][0]["message"]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
        {"type": "reasoning.summary", "index": 2, "summary": "in short"},
    ]


def test_token_ids_come_together() -> None:
    one, two = chunk({"content": "a"}), chunk({"content": "b"}, "stop")
    one["choices"][0]["token_ids"], two["choices"][0]["token_ids"] = [1, 2], [3]
    whole = value(assembled([stream([{**one, "prompt_token_ids": [9]}, two])]))
    assert whole["choices"][0]["token_ids"] == [1, 2, 3] and whole["prompt_token_ids"] == [9]


def test_half_a_surrogate_pair_survives() -> None:
    raw = b'data: {"choices": [{"delta": {"content": "\\ud83d"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    body = assembled([raw])
    assert value(body)["choices"][0]["message"]["content"] == "\ud83d" and body.raw.isascii()


def test_an_answer_of_five_megabytes_in_many_pieces_is_assembled() -> None:
    text = "".join(f"{number:07d} " for number in range(640_000))
    data = stream(as_chunks(reply({"content": text}), 100))
    pieces = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    assert value(assembled(pieces))["choices"][0]["message"]["content"] == text


FINISHED = [chunk({"content": "x"}), chunk({"content": ""}, "stop")]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (stream(FINISHED, done=False), "cut_stream"),
        (stream([chunk({"content": "x"}), chunk(usage={"cost": 1})], done=False), "cut_stream"),
        (stream(FINISHED[:1], done=False), "cut_stream"),
        (stream([*FINISHED, chunk(usage={"cost": 1})], done=False), None),
        (stream(FINISHED), None),
        (stream([FINISHED[0], b"data: {broken\n\n", FINISHED[1]]), "broken_chunk"),
        (stream([FINISHED[0], b"data: [1]\n\n"]), "broken_chunk"),
        (b": OPENROUTER PROCESSING\n\n", "cut_stream"),
        (stream(FINISHED)[:-80] + b'data: {"choices": [{"del', "broken_chunk"),
        (b"", None),  # judged as an empty body
        (b"<html>", None),
    ],
    ids=["finish without usage", "usage without finish", "neither", "both", "done alone", "broken JSON", "no object",
         "only comments", "torn in a chunk", "nothing", "a page"],
)  # fmt: skip
def test_a_stream_without_its_end_is_no_reply(data: bytes, problem: str | None) -> None:
    assert assembled([data]).problem == problem


@pytest.mark.parametrize("choices", [[], [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]])
@pytest.mark.parametrize("done", [True, False])
def test_an_error_in_the_middle_is_told_whatever_stands_beside_it(choices: list[Any], done: bool) -> None:
    failed = {**chunk(), "choices": choices, "error": {"code": 502, "message": "upstream died"}}
    body = assembled([stream([chunk({"content": "half"}), failed], done=done)])
    assert body.problem is None and value(body)["error"]["message"] == "upstream died"
    assert value(body)["choices"][0]["message"]["content"] == "half"
