"""Which rows run through the target together: as little padding as their lengths allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """Row numbers that run together, and the length (tokens) that they are padded to in the forward pass."""

    rows: tuple[int, ...]
    length: int

    @property
    def padded_tokens(self) -> int:
        return len(self.rows) * self.length


def plan(lengths: Sequence[int], budget: int) -> list[Batch]:
    """Batches of at most `budget` tokens, padding included, over rows of these lengths; a longer row runs alone.

    Rows are sorted by length over the whole shard, so neighbours differ by little (chat-like lengths: a few percent of
    padding). The longest come first: a batch that does not fit the memory fails at once, not after an hour. The
    order depends on nothing but the lengths, so equal shards give equal bytes.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[Batch] = []
    at = 0
    while at < len(order):
        length = lengths[order[at]]
        count = max(1, budget // max(1, length))
        batches.append(Batch(tuple(order[at : at + count]), length))
        at += count
    return batches
