"""Which drafter slots train: exactly those that a speculative decode uses.

A span `[s, end)` holds the tokens that the target generated in one turn, its last token at `e = end - 1`. While
serving, the target itself gives `x[s]`; the first draft is made at slot `s - 1`, the last prompt position, from the
target states there and the token `x[s]`, and it guesses `x[s + 1]`. In general slot `i` at step `k` guesses
`x[i + 2 + k]`, so it is used iff `s - 1 <= i` and `i + 2 + k <= e`: a guess past `e` is never checked.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def trained_slots(spans: Iterable[tuple[int, int]], length: int, step: int) -> NDArray[np.bool_]:
    """Mask over the slots of one row at TTT step `step` (0 is the first draft).

    Args:
        spans: half-open generated ranges of the row, in token positions.
        length: tokens of the row, T.
        step: k >= 0.

    Returns:
        bool[T]; slot i is set iff a span (s, end) has s - 1 <= i, i + 2 + k <= end - 1 and i >= 0.
    """
    mask = np.zeros(length, dtype=np.bool_)
    for start, end in spans:
        mask[max(start - 1, 0) : max(end - 2 - step, 0)] = True
    return mask


def trained_count(spans: Iterable[tuple[int, int]]) -> int:
    """Trained slots of a row at step 0, which is also its number of trained tokens (their labels `x[i + 2]`)."""
    return sum(max(end - 1 - max(start, 1), 0) for start, end in spans)
