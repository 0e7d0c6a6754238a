"""The draft vocabulary: the most frequent trained tokens, with every control token in it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from eyrie.errors import InputError
from eyrie.shards.corpus import Vocabulary


def choose(counts: NDArray[np.int64], size: int, forced: Iterable[int]) -> Vocabulary:
    """The vocabulary of `size` tokens: `forced` ones, then the most counted, then the lowest unseen ids.

    Args:
        counts: int64[V], how often each target token is trained. Ties go to the lower id.
        size: D. D == V is allowed and leaves nothing out.
        forced: target ids that must be inside; ids outside the V embedding rows are ignored, the target cannot say
            them.

    Raises:
        InputError: D > V, or more forced tokens than D.
    """
    total = len(counts)
    if size > total:
        raise InputError(f"drafter.draft_vocab_size={size} is more than the target's {total} tokens; lower it")
    must = np.zeros(total, dtype=np.bool_)
    must[[index for index in forced if 0 <= index < total]] = True
    if must.sum() > size:
        raise InputError(f"drafter.draft_vocab_size={size} is less than the {must.sum()} special tokens; raise it")
    order = np.lexsort((np.arange(total), -counts, ~must))  # last key first: forced, then count, then id
    t2d = np.zeros(total, dtype=np.bool_)
    t2d[order[:size]] = True
    return Vocabulary(t2d, np.nonzero(t2d)[0].astype(np.int64) - np.arange(size), counts)


def coverage(counts: NDArray[np.int64], t2d: NDArray[np.bool_]) -> float | None:
    """Share of counted tokens inside the vocabulary; None when nothing was counted."""
    total = int(counts.sum())
    return int(counts[t2d].sum()) / total if total else None
