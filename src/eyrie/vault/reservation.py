"""How much money a request holds while it is under way: its worst case, or what answers like it have really cost.

A worst case counts every byte of the prompt as a token and an answer of max_tokens; the answers of 2000 slots cost a
tenth of that, so worst cases alone would leave half of a budget idle. A high quantile of the *share* of its worst case
that each answer cost carries over from short prompts to long ones, and from one price list to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MILLIONTHS = 1_000_000
ENOUGH = 200  # attempts before a quantile of them is trusted
QUANTILE_PERCENT = 95
UNFINISHED_PERCENT = 1  # of the attempts that a quantile is taken of


class Reserve(Enum):
    """`generate.reserve`. What it means for the budget: `admission.admit`."""

    worst = "worst"
    quantile = "quantile"


@dataclass(frozen=True)
class Attempt:
    """One attempt of a dataset: micro-dollars at worst, and what it cost (None = it is not over)."""

    worst: int
    cost: int | None


def share_to_reserve(mode: Reserve, attempts: Sequence[Attempt]) -> int:
    """Millionths of its worst case that a request of this dataset must hold.

    `attempts` in the order in which they were sent. Short answers come back first, so a quantile of what is finished
    would be too low while many are under way: it is taken of the longest beginning of `attempts` of which at most
    `UNFINISHED_PERCENT` are not over, and those count as their worst case. Until that beginning has `ENOUGH` attempts,
    the worst case is held. An answer that cost more than its worst case (a price rose) raises the share above 1 in
    either mode.
    """
    shares = [MILLIONTHS if a.cost is None else -(-a.cost * MILLIONTHS // a.worst) for a in attempts]
    highest = max((MILLIONTHS, *shares))
    if mode is Reserve.worst:
        return highest
    counted = _representative(attempts)
    if counted < ENOUGH:
        return highest
    ordered = sorted(shares[:counted])
    return ordered[-(-counted * QUANTILE_PERCENT // 100) - 1]


def _representative(attempts: Sequence[Attempt]) -> int:
    """Length of the longest beginning of `attempts` that is finished but for a few."""
    longest = unfinished = 0
    for number, attempt in enumerate(attempts, 1):
        unfinished += attempt.cost is None
        if unfinished * 100 <= number * UNFINISHED_PERCENT:
            longest = number
    return longest


def reserved(worst: int, share: int) -> int:
    """Micro-dollars to hold of a worst case; rounded up, so that what is not free holds something."""
    return -(-worst * share // MILLIONTHS)
