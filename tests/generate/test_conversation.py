"""A conversation as a pure thing: turns, tools, cuts and pieces, on messages made up here."""

from __future__ import annotations

from typing import Any

import pytest

from eyrie.errors import InputError
from eyrie.files import write_jsonl_zst
from eyrie.gateway.providers import Endpoint, ProviderList
from eyrie.gateway.request import RequestBuilder, Sampling
from eyrie.generate.conversation import Conversation
from eyrie.generate.rows import read_units

FREE = Endpoint("server", "server", None, 0, None, 1000, None, "0", "0")
BUILDER = RequestBuilder("openai", "m", Sampling(4), None, ProviderList("openai", "m", {}, (FREE,), {}))


def talk(turns: list[dict[str, Any]] | None = None, max_pieces: int = 1, **row: Any) -> Conversation:
    return Conversation.start(
        {"messages": [{"role": "user", "content": "q"}], "turns": turns or [], **row}, 9, max_pieces
    )


def said(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str, identity: Any = "c0", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_targets_own_answers_with_all_that_belongs_to_them_are_the_history() -> None:
    conversation = talk([{"role": "user", "content": "and?"}])
    answer = said("a", reasoning="r", reasoning_details=[{"text": "r"}])
    conversation.answer(answer, cut=False)
    assert conversation.messages == [
        {"role": "user", "content": "q"}, answer, {"role": "user", "content": "and?"}]  # fmt: skip


def test_what_the_source_said_between_two_user_turns_is_never_in_the_history() -> None:
    results = [{"role": "tool", "name": "f", "content": "old"}, {"role": "user", "content": "next"}]
    conversation = talk(results)
    conversation.answer(said("no call"), cut=False)
    assert [m["role"] for m in conversation.messages] == ["user", "assistant", "user"]


def test_a_result_is_told_which_call_it_answers_and_used_once() -> None:
    conversation = talk([{"role": "tool", "name": "f", "content": "1"}, {"role": "tool", "name": "g", "content": "2"}])
    conversation.answer(said(None, tool_calls=[call("g", "functions.g:0"), call("f", "functions.f:1")]), cut=False)
    assert [(m["tool_call_id"], m["content"]) for m in conversation.messages[2:]] == [
        ("functions.g:0", "2"), ("functions.f:1", "1")]  # fmt: skip
    conversation.answer(said(None, tool_calls=[call("g")]), cut=False)
    assert conversation.ended == "tool_result_missing" and conversation.messages[-1]["tool_calls"]


@pytest.mark.parametrize("bad", [call("f", None), call("f", arguments="{"), call(""), {"id": "x"}, "text", None])
def test_a_call_that_no_host_would_take_in_a_history_ends_there(bad: Any) -> None:
    conversation = talk([{"role": "tool", "name": "f", "content": "1"}])
    conversation.answer(said(None, tool_calls=[bad]), cut=False)
    assert conversation.ended in ("tool_call_malformed", "tool_result_missing")
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"]


def test_a_cut_tool_call_is_neither_answered_nor_continued() -> None:
    conversation = talk([{"role": "tool", "name": "f", "content": "1"}], max_pieces=4)
    conversation.answer(said(None, tool_calls=[call("f", arguments='{"a')]), cut=True, ids=([1], [2]))
    assert conversation.ended == "length" and len(conversation.messages) == 2


def test_pieces_make_one_message_and_ask_with_all_ids_so_far() -> None:
    conversation = talk([{"role": "user", "content": "and?"}], max_pieces=3)
    conversation.answer(said("one ", reasoning_content="r"), cut=True, ids=([1, 2], [3]))
    request = conversation.request(BUILDER, 0)
    assert request.path == "completions" and b'"prompt":[1,2,3]' in request.body
    conversation.answer(said("two "), cut=True, ids=([1, 2, 3], [4, 5]))
    assert b'"prompt":[1,2,3,4,5]' in conversation.request(BUILDER, 0).body
    conversation.answer(said("three"), cut=False, ids=([1, 2, 3, 4, 5], [6]))
    assert conversation.messages[1] == said("one two three", reasoning_content="r")
    assert conversation.messages[2]["content"] == "and?" and conversation.ended is None
    assert conversation.turn == 3 and conversation.answered_at == [1]
    assert conversation.request(BUILDER, 0).path == "chat/completions"


def test_the_last_piece_allowed_may_be_cut() -> None:
    conversation = talk(max_pieces=2)
    conversation.answer(said("a"), cut=True, ids=([1], [2]))
    conversation.answer(said("b"), cut=True, ids=([1, 2], [3]))
    assert conversation.ended == "length" and conversation.messages[-1]["content"] == "ab"


@pytest.mark.parametrize(
    ("message", "ids", "row"),
    [
        (said("a"), None, {}),
        (said("", reasoning_content="r"), ([1], [2]), {}),
        (said("a\ufffd"), ([1], [2]), {}),
        (said("a"), ([1], [2]), {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ],
    ids=["no ids", "inside reasoning", "half a character", "a tool call may begin"],
)
def test_what_cannot_be_joined_exactly_stays_cut(message: dict[str, Any], ids: Any, row: dict[str, Any]) -> None:
    conversation = talk(max_pieces=4, **row)
    conversation.answer(message, cut=True, ids=ids)
    assert conversation.ended == "length"


def test_a_piece_that_does_not_come_leaves_the_beginning_and_an_open_one_stays_open() -> None:
    for reason, ended in (("context_length", "length"), ("open", "open")):
        conversation = talk(max_pieces=4)
        conversation.answer(said("a"), cut=True, ids=([1], [2]))
        conversation.abandon(reason)
        assert conversation.ended == ended and conversation.messages[-1]["content"] == "a"


def test_a_second_system_message_is_refused_by_name(tmp_path) -> None:  # noqa: ANN001
    late = [{"role": "user", "content": "q"}, {"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    write_jsonl_zst(tmp_path / "p.zst", [{"id": "a", "index": 0, "messages": late}])
    with pytest.raises(InputError, match="row 1 has a system message that is not the first"):
        [unit.row for unit in read_units(tmp_path / "p.zst", 1)]
