"""The prompts file as units of work: one per row and repetition, in index order, parsed only when looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eyrie.errors import InputError
from eyrie.files import lines_zst

# How canonical JSON of a prompt row begins: most rows of a resumed run are known to be done by their id alone.
_HEAD = re.compile(rb'\{"id":"([^"\\]+)","index":(\d+),"messages":\[')


class Row:
    """One line of the prompts file. `id` and `index` are known at once, `content` is parsed and checked when asked
    for. Raises InputError naming file and row when it is no prompt row."""

    __slots__ = ("_content", "_path", "id", "index", "line", "number")

    def __init__(self, path: str | Path, number: int, line: bytes) -> None:
        self._path, self.number, self.line = path, number, line
        self._content: dict[str, Any] | None = None
        if head := _HEAD.match(line):
            self.id, self.index = head[1].decode(), int(head[2])
        else:
            self.id, self.index = self.content["id"], self.content["index"]

    def wrong(self, problem: str) -> InputError:
        return InputError(f"{self._path}: row {self.number} {problem}; rebuild it with `snakemake prompts`")

    @property
    def has_turns(self) -> bool:
        """Whether more turns than the first may follow: the last key of a row; inside a string its quotes would be
        escaped."""
        return self.line.endswith(b"}]}") and b'"turns":[{' in self.line

    @property
    def content(self) -> dict[str, Any]:
        if self._content is None:
            try:
                value = json.loads(self.line)
            except ValueError as error:
                raise self.wrong(f"is not JSON ({error})") from None
            if problem := _problem(value):
                raise self.wrong(problem)
            self._content = value
        return self._content


class Unit(NamedTuple):
    """One conversation to be had."""

    source: Row
    repetition: int

    @property
    def row(self) -> dict[str, Any]:
        """The prompt row."""
        return self.source.content

    @property
    def id(self) -> str:
        """The row's id in the output: a repetition is a row of its own."""
        return self.source.id if self.repetition == 0 else f"{self.source.id}#r{self.repetition}"


def read_rows(path: str | Path) -> Iterator[Row]:
    """The rows of a prompts file. Raises InputError naming file and row when one is not a prompt row."""
    last = -1
    for number, line in enumerate(lines_zst(path), 1):
        row = Row(path, number, line)
        if row.index <= last:
            raise row.wrong(f"has index {row.index} after {last}")
        last = row.index
        yield row


def read_units(path: str | Path, repetitions: int) -> Iterator[Unit]:
    """The units of a prompts file: its rows, each as often as answers to it are bought."""
    return (Unit(row, repetition) for row in read_rows(path) for repetition in range(repetitions))


def _problem(row: Any) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or type(row.get("index")) is not int:
        return "has no id or index"
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or messages[-1].get("role") != "user":
        return "does not end with a user message"
    if any(message.get("role") == "system" for message in messages[1:]):
        return "has a system message that is not the first, which several hosts refuse"
    for turn in row.get("turns") or ():
        if not isinstance(turn, dict) or turn.get("role") not in ("user", "tool"):
            return "has a turn that is neither a user message nor a tool result"
    return ""
