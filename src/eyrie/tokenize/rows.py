"""From the turns of one conversation to training rows: pure functions on token ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Turn:
    """One answer as the server saw it: the ids of its whole prompt, and the ids it generated."""

    number: int
    prompt: list[int]
    generated: list[int]


@dataclass(frozen=True)
class Draft:
    """A row in the making: ids with half-open generated spans; `turn` is the first turn in it."""

    turn: int
    ids: list[int]
    spans: list[tuple[int, int]]


def join_turns(turns: Iterable[Turn]) -> list[Draft]:
    """As few rows as show every turn exactly what the server saw.

    A turn whose prompt begins with all ids so far extends the row. Where it does not (the template empties old
    thinking, a client rewrote the history, text came back in other tokens) a new row begins: for templates that
    rewrite history at every turn that is one row per turn.
    """
    rows: list[Draft] = []
    for turn in turns:
        span = (len(turn.prompt), len(turn.prompt) + len(turn.generated))
        if rows and turn.prompt[: len(rows[-1].ids)] == rows[-1].ids:
            last = rows.pop()
            rows.append(Draft(last.turn, turn.prompt + turn.generated, [*last.spans, span]))
        else:
            rows.append(Draft(turn.number, turn.prompt + turn.generated, [span]))
    return rows


def cut(row: Draft, max_length: int) -> tuple[Draft | None, str | None]:
    """The row within `max_length` tokens, and what was done: None, `cut_at_span_end` or `cut_inside_span`.

    It ends with the last span that fits. When not even the first fits, that span is cut: its beginning is still a
    valid prefix of what the target says. A prompt that leaves no room gives no row.
    """
    if len(row.ids) <= max_length:
        return row, None
    spans = [span for span in row.spans if span[1] <= max_length]
    if spans:
        return replace(row, ids=row.ids[: spans[-1][1]], spans=spans), "cut_at_span_end"
    start = row.spans[0][0]
    if start >= max_length:
        return None, None
    return replace(row, ids=row.ids[:max_length], spans=[(start, max_length)]), "cut_inside_span"
