"""What an adapter makes of one source row: a prompt, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


class BadRow(ValueError):
    """A row that breaks its dataset's schema; the message says which column and how."""


@dataclass(frozen=True)
class Drop:
    """Why a source row is no prompt: `reason` is counted in the summary, `detail` shown for the first few."""

    reason: str
    detail: str = ""


@dataclass(frozen=True)
class PromptRow:
    """A conversation up to where the target must answer, in OpenAI chat form.

    `messages` is an optional system message and the first user message. `turns` is what follows on the user's side,
    in order: later user turns, and tool results recorded in the source (`{"role": "tool", "name", "content"}`), to be
    played back to the target. `id` is the source's own, or a hash of the source row where it has none; it never
    depends on how the row is normalised, so paid answers survive a change of that.
    """

    id: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Message] = field(default_factory=list)


@dataclass(frozen=True)
class Adapter:
    """How to read one dataset: the columns that its rows must have, and what makes a prompt of a row.

    `columns` is a tuple of alternatives, each a tuple of names: a row must have all columns of one alternative.
    """

    columns: tuple[tuple[str, ...], ...]
    adapt: Callable[[Mapping[str, Any]], PromptRow | Drop]

    def missing(self, raw: Mapping[str, Any]) -> str:
        """Which columns `raw` lacks, as text; empty when it has what this adapter reads."""
        if any(all(name in raw for name in names) for names in self.columns):
            return ""
        return " or ".join(", ".join(name for name in names if name not in raw) for names in self.columns)


def text_column(raw: Mapping[str, Any], name: str) -> str:
    """The text in column `name`; raises BadRow when it is something else."""
    value = raw.get(name)
    if not isinstance(value, str):
        raise BadRow(f"column {name} is {type(value).__name__}, not text")
    return value
