"""Every known oddity of glaive-function-calling-v2, and what becomes of it."""

from __future__ import annotations

import json

import pytest

from eyrie.prompts.adapters.glaive import adapt, conversation, functions, split
from eyrie.prompts.rows import BadRow, Drop, PromptRow

LEAD = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
RATE = (
    '{\n    "name": "get_rate",\n    "description": "Rate",\n    "parameters": {"type": "object", "properties": {}}\n}'
)
MAIL = '{"name": "send_mail", "description": "Mail {to} someone", "parameters": {"type": "object", "properties": {}}}'
END = " <|endoftext|>"


def tool(name: str, description: str) -> dict:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def test_golden_row_with_a_call_its_result_and_a_second_user_turn() -> None:
    chat = (
        "USER: What is a franc worth?\n\n\nASSISTANT: <functioncall> "
        '{"name": "get_rate", "arguments": \'{"from": "CHF"}\'}' + END + "\n\n\n"
        'FUNCTION RESPONSE: {"rate": 1.05}\n\n\nASSISTANT: 1.05 euros.' + END + "\n\n\n"
        "USER: Thanks!\n\n\nASSISTANT: Any time." + END + "\n\n\n"
    )
    row = adapt({"system": LEAD + RATE, "chat": chat})
    assert isinstance(row, PromptRow)
    assert row.messages == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is a franc worth?"},
    ]
    assert row.tools == [tool("get_rate", "Rate")]
    assert row.turns == [
        {"role": "tool", "name": "get_rate", "content": '{"rate": 1.05}'},
        {"role": "user", "content": "Thanks!"},
    ]


def test_functions_stand_one_after_another_without_commas() -> None:
    text, tools = functions(LEAD + RATE + "\n\n" + MAIL + "\n")
    assert text == "You are a helpful assistant."
    assert tools == [tool("get_rate", "Rate"), tool("send_mail", "Mail {to} someone")]


def test_a_row_without_functions_keeps_its_system_text_and_has_no_tools() -> None:
    said = "SYSTEM: You are a helpful assistant, with no access to external functions."
    row = adapt({"system": said, "chat": "USER: Hello\n\n\nASSISTANT: Hi" + END})
    assert isinstance(row, PromptRow)
    assert (row.messages[0]["content"], row.tools) == (said.removeprefix("SYSTEM: "), [])


def test_a_function_without_parameters_gets_an_empty_object() -> None:
    _, (declared,) = functions(LEAD + '{"name": "now", "description": "Time", "parameters": {}}')
    assert declared["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("""'{"text": "it's Tom's"}'""", {"text": "it's Tom's"}),
        ("""'{"text": "say \\"no\\""}'""", {"text": 'say "no"'}),
        (r"""'{"text": "it\'s"}'""", {"text": "it's"}),
        ("""'{"nested": {"a": [1, {"b": "}'"}]}}'""", {"nested": {"a": [1, {"b": "}'"}]}}),
        ("""{"text": "plain object"}""", {"text": "plain object"}),
        ("""'{\n  "a": 1\n}'""", {"a": 1}),
        ("""'{}'""", {}),
    ],
)
def test_arguments_in_single_quotes_become_one_json_string(arguments: str, meant: dict) -> None:
    chat = f'USER: x\n\n\nASSISTANT: <functioncall> {{"name": "f", "arguments": {arguments}}}{END}\n\n\n'
    (_, assistant) = conversation(chat)
    (made,) = assistant["tool_calls"]
    assert made["type"] == "function" and made["function"]["name"] == "f"
    assert isinstance(made["function"]["arguments"], str)
    assert json.loads(made["function"]["arguments"]) == meant


def test_a_call_without_arguments_has_empty_ones() -> None:
    (_, assistant) = conversation('USER: x\n\n\nASSISTANT: <functioncall> {"name": "now"}' + END)
    assert assistant["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_two_calls_in_one_turn_match_their_results_in_order() -> None:
    two = """<functioncall> {"name": "f", "arguments": '{"a": 1}'} <functioncall> {"name": "g", "arguments": '{}'}"""
    chat = f"USER: x\n\n\nASSISTANT: Wait.{two}{END}\n\n\nFUNCTION RESPONSE: 1\n\n\nASSISTANT:{END}\n\n\nUSER: y"
    messages = conversation(chat.replace("1\n\n\nASSISTANT:", "1\n\n\nASSISTANT: "))
    assert messages[1]["content"] == "Wait."
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["f", "g"]
    assert (messages[2]["name"], messages[2]["tool_call_id"]) == ("f", messages[1]["tool_calls"][0]["id"])


@pytest.mark.parametrize(
    "text",
    [
        "My log says\nUSER: failed\nASSISTANT: retry\nwhat now?",
        "My log says\n\nUSER: failed\n\nASSISTANT: retry\n\nwhat now?",
        "It starts with\n\n\nUSER: and goes on",
        "What does FUNCTION RESPONSE: mean?",
        "Tabs\n\n\nFUNCTION RESPONSE: inside",
    ],
)
def test_role_words_inside_a_users_text_stay_text(text: str) -> None:
    chat = f"USER: {text}\n\n\nASSISTANT: Well.{END}\n\n\nUSER: Next\n\n\nASSISTANT: Yes.{END}\n\n\n"
    assert split(chat) == [("USER", text), ("ASSISTANT", "Well."), ("USER", "Next"), ("ASSISTANT", "Yes.")]


def test_role_words_inside_an_answer_do_not_become_a_user_turn() -> None:
    chat = f"USER: Write a script\n\n\nASSISTANT: Here:\n\n\nUSER: Hello\n\n\nASSISTANT: Hi{END}\n\n\nUSER: More\n\n\n"
    row = adapt({"system": "SYSTEM: Be brief.", "chat": chat})
    assert isinstance(row, PromptRow)
    assert row.turns == [{"role": "user", "content": "More"}]


def test_a_result_whose_call_cannot_be_read_ends_what_is_played_back() -> None:
    chat = f"USER: a\n\n\nASSISTANT: <functioncall> garbage{END}\n\n\nFUNCTION RESPONSE: 1\n\n\nASSISTANT: b{END}\n\n\n"
    row = adapt({"system": LEAD + RATE, "chat": chat + f"USER: c\n\n\nASSISTANT: d{END}"})
    assert isinstance(row, PromptRow)
    assert row.turns == []


def test_a_chat_cut_off_in_the_middle_is_still_a_prompt() -> None:
    row = adapt({"system": "SYSTEM: Be brief.", "chat": "USER: How tall is a giraffe?\n\n\nASSISTANT: About fi"})
    assert isinstance(row, PromptRow)
    assert row.messages[-1]["content"] == "How tall is a giraffe?"


def test_a_chat_that_only_the_assistant_speaks_in_is_no_prompt() -> None:
    assert adapt({"system": "SYSTEM: x", "chat": f"ASSISTANT: Hello{END}"}) == Drop("empty", "no user turn")


@pytest.mark.parametrize(
    ("system", "chat", "told"),
    [
        (LEAD + '{"name": "f", ', "USER: x", "function 1 is not JSON"),
        (LEAD + RATE + "\nand also", "USER: x", "function 2 is not JSON"),
        (LEAD + '{"description": "nameless"}', "USER: x", "name is None"),
        (LEAD + '{"name": "get rate"}', "USER: x", "name is 'get rate'"),
        (LEAD + '{"name": "f", "parameters": "none"}', "USER: x", "parameters of f"),
        ("SYSTEM: x", "Hello there", "does not start with USER:"),
        (None, "USER: x", "column system is NoneType"),
    ],
)
def test_a_broken_row_says_what_is_broken(system: str | None, chat: str, told: str) -> None:
    with pytest.raises(BadRow, match=told):
        adapt({"system": system, "chat": chat})


def test_the_id_is_of_the_source_row_and_of_nothing_else() -> None:
    raw = {"system": "SYSTEM: x", "chat": "USER: y"}
    first, again, other = adapt(raw), adapt({**raw, "extra": 1}), adapt({**raw, "chat": "USER: z"})
    assert isinstance(first, PromptRow) and isinstance(again, PromptRow) and isinstance(other, PromptRow)
    assert first.id == again.id != other.id
