"""The prompts file as units of work: one per row and repetition, in index order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import read_jsonl_zst


@dataclass(frozen=True)
class Unit:
    """One conversation to be had."""

    row: dict[str, Any] = field(repr=False)
    repetition: int

    @property
    def id(self) -> str:
        """The row's id in the output: a repetition is a row of its own."""
        return self.row["id"] if self.repetition == 0 else f"{self.row['id']}#r{self.repetition}"


def read_units(path: str | Path, repetitions: int) -> Iterator[Unit]:
    """The units of a prompts file. Raises InputError naming file and row when one is not a prompt row."""
    last = -1
    for number, row in enumerate(read_jsonl_zst(path), 1):
        problem = _problem(row, last)
        if problem:
            raise InputError(f"{path}: row {number} {problem}; rebuild it with `snakemake prompts`")
        last = row["index"]
        for repetition in range(repetitions):
            yield Unit(row, repetition)


def _problem(row: Any, last: int) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or type(row.get("index")) is not int:
        return "has no id or index"
    if row["index"] <= last:
        return f"has index {row['index']} after {last}"
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or messages[-1].get("role") != "user":
        return "does not end with a user message"
    if any(message.get("role") == "system" for message in messages[1:]):
        return "has a system message that is not the first, which several hosts refuse"
    for turn in row.get("turns") or ():
        if not isinstance(turn, dict) or turn.get("role") not in ("user", "tool"):
            return "has a turn that is neither a user message nor a tool result"
    return ""
