"""Golden rows of the other adapters."""

from __future__ import annotations

from typing import Any

import pytest

from eyrie.errors import InputError
from eyrie.prompts.adapters import ADAPTERS, adapter
from eyrie.prompts.rows import BadRow, Drop, PromptRow

PARAMETERS = {"type": "object", "properties": {}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]


def prompt(name: str, raw: dict[str, Any]) -> PromptRow:
    row = adapter(name).adapt(raw)
    assert isinstance(row, PromptRow)
    return row


def test_an_unknown_adapter_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match="glaive, humaneval, jsonl, magicoder, opencodeinstruct, sweagent"):
        adapter("glave")


@pytest.mark.parametrize("score", [0.7, "0.7", None])
def test_opencodeinstruct_reads_the_request_and_its_id_whatever_type_the_score_has(score: Any) -> None:
    raw = {
        "id": "ab12", "input": "Write f.", "output": "def f(): ...", "domain": "generic",
        "generation_algorithm": "self-instruct", "llm_judgement": "{}", "unit_tests": "[]",
        "tests_execution_status": '["pass"]', "average_test_score": score,
    }  # fmt: skip
    assert prompt("opencodeinstruct", raw) == PromptRow("ab12", [{"role": "user", "content": "Write f."}])


@pytest.mark.parametrize("bad", [{"id": "", "input": "x"}, {"id": "a", "input": None}, {"id": 3, "input": "x"}])
def test_opencodeinstruct_refuses_rows_without_id_or_text(bad: dict) -> None:
    with pytest.raises(BadRow, match="column"):
        adapter("opencodeinstruct").adapt(bad)


def test_magicoder_takes_the_problem_and_not_the_cut_seed() -> None:
    raw = {"lang": "python", "raw_index": 5, "index": 3, "seed": "def f(x", "openai_fingerprint": "fp",
           "problem": "Sort it.", "solution": "sorted(it)"}  # fmt: skip
    row = prompt("magicoder", raw)
    assert row.messages == [{"role": "user", "content": "Sort it."}]
    assert row.id == prompt("magicoder", {**raw, "index": 4, "seed": ""}).id
    assert row.id != prompt("magicoder", {**raw, "problem": "Sort them."}).id


def test_humaneval_becomes_a_request_that_keeps_the_indentation() -> None:
    raw = {"task_id": "HumanEval/7", "prompt": '\n\ndef f(x):\n    """Doc.\n    >>> f(1)\n    """\n', "test": "..."}
    row = prompt("humaneval", raw)
    assert row.id == "HumanEval/7"
    code = 'def f(x):\n    """Doc.\n    >>> f(1)\n    """'
    assert row.messages[0]["content"] == f"Complete the following Python function.\n\n```python\n{code}\n```"


def test_openai_messages_keep_the_users_side_and_match_tool_results_to_calls() -> None:
    calls = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for identity, name in (("c1", "f"), ("c2", "g"))
    ]
    raw = {
        "id": 17,
        "tools": TOOLS,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "assistant", "content": "It is 1."},
            {"role": "user", "content": "And now?"},
        ],
    }
    assert prompt("jsonl", raw) == PromptRow(
        id="17",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One two"}],
        tools=TOOLS,
        turns=[
            {"role": "tool", "name": "g", "content": "2"},
            {"role": "tool", "name": "f", "content": "1"},
            {"role": "user", "content": "And now?"},
        ],
    )


def test_sharegpt_roles_are_understood_and_a_leading_answer_is_skipped() -> None:
    raw = {
        "id": "abc_0",
        "conversations": [
            {"from": "gpt", "value": "Welcome back"},
            {"from": "human", "value": "Hi"},
            {"from": "bard", "value": "Hello"},
            {"from": "user", "value": "Call it"},
            {"from": "function_call", "value": '{"name": "g", "arguments": {}}'},
            {"from": "observation", "value": "42"},
        ],
    }
    assert prompt("jsonl", raw) == PromptRow(
        id="abc_0",
        messages=[{"role": "user", "content": "Hi"}],
        turns=[{"role": "user", "content": "Call it"}, {"role": "tool", "name": "g", "content": "42"}],
    )


def test_tools_may_be_given_as_json_text() -> None:
    raw = {"messages": [{"role": "user", "content": "x"}], "tools": '[{"function": {"name": "f"}}]'}
    assert prompt("jsonl", raw).tools == [{"function": {"name": "f"}}]


def test_an_id_is_made_from_the_content_where_the_row_has_none() -> None:
    one = prompt("jsonl", {"messages": [{"role": "user", "content": "x"}]})
    two = prompt("jsonl", {"messages": [{"role": "user", "content": "y"}], "id": None})
    assert len(one.id) == 16 and one.id != two.id


def test_an_image_or_a_late_system_message_is_no_prompt() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    late = [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]
    dropped = [ADAPTERS["jsonl"].adapt({"messages": messages}) for messages in (image, late, [])]
    assert [drop.reason for drop in dropped if isinstance(drop, Drop)] == ["not text", "late system message", "empty"]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"messages": "hello"}, "neither messages nor conversations is a list"),
        ({"messages": ["hello"]}, "a message is str"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "role is 'narrator'"),
        ({"conversations": [{"value": "x"}]}, "role is None"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": "[{"}, "tools is not JSON"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}, "a tool is not"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]}, "no function name"),
        ({"conversations": [{"from": "function_call", "value": "f()"}]}, "function_call turn"),
    ],
)
def test_a_broken_chat_row_says_what_is_broken(raw: dict, told: str) -> None:
    with pytest.raises(BadRow, match=told):
        adapter("jsonl").adapt(raw)


def test_sweagent_takes_the_issue_and_what_commands_printed() -> None:
    step = {"mask": False, "cutoff_date": "2023-01-01"}
    raw = {
        "instance_id": "org__repo-7",
        "model_name": "m",
        "target": True,
        "trajectory": [
            {**step, "role": "system", "text": None, "system_prompt": "You are an engineer."},
            {**step, "role": "user", "text": "Fix issue 7.", "system_prompt": None},
            {**step, "role": "ai", "text": "ls", "system_prompt": None},
            {**step, "role": "user", "text": "setup.py", "system_prompt": None},
        ],
    }
    assert prompt("sweagent", raw) == PromptRow(
        id="org__repo-7",
        messages=[{"role": "system", "content": "You are an engineer."}, {"role": "user", "content": "Fix issue 7."}],
        turns=[{"role": "user", "content": "setup.py"}],
    )


def test_sweagent_refuses_steps_it_does_not_know() -> None:
    with pytest.raises(BadRow, match="role is 'tool'"):
        adapter("sweagent").adapt({"instance_id": "a", "trajectory": [{"role": "tool", "text": "x"}]})
    with pytest.raises(BadRow, match="trajectory is str"):
        adapter("sweagent").adapt({"instance_id": "a", "trajectory": "x"})
    assert adapter("sweagent").adapt({"instance_id": "a", "trajectory": []}) == Drop("empty", "no user turn")
