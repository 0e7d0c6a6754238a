"""The prompts file as units of work: one per row and repetition, in index order, parsed only when looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import lines_zst

# How canonical JSON of a prompt row begins: most rows of a resumed run are known to be done by their id alone.
_HEAD = re.compile(rb'\{"id":"([^"\\]+)","index":(\d+),"messages":\[')


@dataclass
class Row:
    """One line of the prompts file. `id` and `index` are known at once, `content` is parsed and checked when asked
    for. Raises InputError naming file and row when it is no prompt row."""

    where: str
    line: bytes = field(repr=False)
    id: str = ""
    index: int = -1

    def __post_init__(self) -> None:
        if head := _HEAD.match(self.line):
            self.id, self.index = head[1].decode(), int(head[2])
        else:
            self.id, self.index = self.content["id"], self.content["index"]

    @property
    def has_turns(self) -> bool:
        """Whether more turns than the first may follow. Inside a string the quotes would be escaped."""
        return b'"turns":[{' in self.line

    @cached_property
    def content(self) -> dict[str, Any]:
        try:
            value = json.loads(self.line)
        except ValueError as error:
            raise InputError(f"{self.where} is not JSON ({error}); rebuild the file with `snakemake prompts`") from None
        if problem := _problem(value):
            raise InputError(f"{self.where} {problem}; rebuild the file with `snakemake prompts`")
        return value


@dataclass(frozen=True)
class Unit:
    """One conversation to be had."""

    source: Row = field(repr=False)
    repetition: int

    @property
    def row(self) -> dict[str, Any]:
        """The prompt row."""
        return self.source.content

    @property
    def id(self) -> str:
        """The row's id in the output: a repetition is a row of its own."""
        return self.source.id if self.repetition == 0 else f"{self.source.id}#r{self.repetition}"


def read_units(path: str | Path, repetitions: int) -> Iterator[Unit]:
    """The units of a prompts file. Raises InputError naming file and row when one is not a prompt row."""
    last = -1
    for number, line in enumerate(lines_zst(path), 1):
        row = Row(f"{path}: row {number}", line)
        if row.index <= last:
            raise InputError(
                f"{row.where} has index {row.index} after {last}; rebuild the file with `snakemake prompts`"
            )
        last = row.index
        for repetition in range(repetitions):
            yield Unit(row, repetition)


def _problem(row: Any) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or type(row.get("index")) is not int:
        return "has no id or index"
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or messages[-1].get("role") != "user":
        return "does not end with a user message"
    for turn in row.get("turns") or ():
        if not isinstance(turn, dict) or turn.get("role") not in ("user", "tool"):
            return "has a turn that is neither a user message nor a tool result"
    return ""
