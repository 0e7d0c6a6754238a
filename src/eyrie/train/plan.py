"""Which rows make which optimizer step: a pure function of the rows, the seed and the batch size.

So a resumed run needs only its step number to know its place in the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Rows of one optimizer step (indices into the train rows) and the epoch they belong to, counted from 0."""

    epoch: int
    rows: tuple[int, ...]


def order(keys: Sequence[str], seed: int, epoch: int) -> list[int]:
    """The rows' order in an epoch: by a hash of seed, epoch and key, so it depends on no library's generator and a
    row keeps its place relative to the others when rows are added."""

    def rank(index: int) -> bytes:
        return hashlib.blake2b(f"{seed}/{epoch}/{keys[index]}".encode(), digest_size=16).digest()

    return sorted(range(len(keys)), key=rank)


def steps(keys: Sequence[str], trained: Sequence[int], *, batch_tokens: int, seed: int, count: int) -> Iterator[Step]:
    """`count` steps over as many epochs as they take.

    Rows (`trained[i] > 0` supervised tokens each) are taken in the epoch's order; a step ends before the row that
    would pass `batch_tokens`, so a longer row stands alone. No step crosses an epoch.
    """
    done = epoch = 0
    while True:
        batch: list[int] = []
        tokens = 0
        for row in [*order(keys, seed, epoch), None]:
            if batch and (row is None or tokens + trained[row] > batch_tokens):
                if done == count:
                    return
                yield Step(epoch, tuple(batch))
                done, batch, tokens = done + 1, [], 0
            if row is not None:
                batch.append(row)
                tokens += trained[row]
        if done == count:
            return
        epoch += 1
