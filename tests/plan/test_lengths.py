"""Lengths: measured where the vault holds answers, sampled from prompts, else assumed and said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyrie.files import canonical_json, lines_zst, write_jsonl_zst
from eyrie.plan.history import History
from eyrie.plan.lengths import lengths, row_ids

ONE, THREE = {"turns": 1, "max_prompt_chars": 8000}, {"turns": 3, "max_prompt_chars": 8000}


def user(characters: int) -> dict[str, Any]:
    return {"role": "user", "content": "x" * characters}


def row(number: int, *turns: dict[str, Any], first: int = 400, **more: Any) -> dict[str, Any]:
    return {"id": f"r{number}", "index": number, "messages": [user(first)], "turns": list(turns), **more}


def prompts(folder: Path, rows: list[dict[str, Any]]) -> Path:
    write_jsonl_zst(folder / "p.jsonl.zst", rows)
    return folder / "p.jsonl.zst"


def test_without_prompts_half_of_the_limit_is_assumed_and_said() -> None:
    found = lengths(ONE, 1500, None, History())
    assert (found.prompt, found.completion, found.answers) == (1000, 1500, 1.0)
    assert "half of max_prompt_chars" in found.basis and "1,500 tokens assumed" in found.basis


def test_prompts_are_sampled_at_four_characters_a_token_and_the_templates_marks(tmp_path: Path) -> None:
    found = lengths(ONE, 100, prompts(tmp_path, [row(0, first=400), row(1, first=800)]), History())
    assert (found.prompt, found.answers) == (158, 1.0) and "its first 2 prompts" in found.basis


def test_tool_declarations_are_part_of_the_prompt(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f" * 100}}]
    found = lengths(ONE, 100, prompts(tmp_path, [row(0, tools=tools)]), History())
    assert found.prompt == round((400 + len(canonical_json(tools))) / 4 + 8)


def test_a_later_turn_pays_for_everything_before_it_again(tmp_path: Path) -> None:
    path = prompts(tmp_path, [row(0, user(40), user(80))])
    # 100; then + answer 50 + 10; then + answer 50 + 20; each message in marks of 8
    assert lengths(THREE, 50, path, History()).prompt == round((108 + 184 + 270) / 3)
    assert lengths(THREE, 50, path, History()).answers == 3
    assert lengths(ONE, 50, path, History()).answers == 1  # turns bound it


def test_recorded_tool_results_are_one_more_answer_together(tmp_path: Path) -> None:
    results = [{"role": "tool", "name": "a", "content": "y" * 40}, {"role": "tool", "name": "b", "content": "y" * 40}]
    found = lengths(THREE, 50, prompts(tmp_path, [row(0, *results)]), History())
    assert found.answers == 2 and found.prompt == round((108 + 202) / 2)


@pytest.mark.parametrize(("answers", "trusted"), [(15, False), (16, True)])
def test_answers_in_the_vault_are_trusted_once_there_are_enough(tmp_path: Path, answers: int, trusted: bool) -> None:
    history = History(answers=answers, tokens=answers * 700, prompt_tokens=answers * 90)
    found = lengths(ONE, 1500, prompts(tmp_path, [row(0)]), history)
    assert (found.prompt, found.completion) == ((90, 700) if trusted else (108, 1500))


def test_ids_are_read_without_the_rows(tmp_path: Path) -> None:
    names = ["plain", 'a"b', 'x,"index":y', "ü\u2028"]
    path = prompts(tmp_path, [{"id": name, "index": i, "messages": [user(5)]} for i, name in enumerate(names)])
    assert list(row_ids(lines_zst(path))) == names
