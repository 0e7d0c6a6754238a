"""The target as evaluation needs it: blocks of new tokens on a KV cache whose rows have lengths of their own.

Every decoder here is written against `TargetEngine`; `eyrie.evaluate.transformers_engine` serves any Hugging Face
causal model, `eyrie.evaluate.packed_engine` the Llama-shaped ones at several times that speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """What one forward pass over a block of new tokens says: `final [R, N, H]` after the target's last norm and
    `aux [R, N, 3H]`, the states the drafter reads, low, middle and high layer side by side."""

    final: Tensor
    aux: Tensor


class TargetCache(Protocol):
    """Keys and values of `B` rows. `lengths int64[B]` says how many leading positions of each row are valid.

    Dropping rejected drafts is setting `lengths`: what lies beyond is never attended and is written over later.
    """

    lengths: Tensor

    def forget(self) -> None:
        """Zero what lies beyond the valid positions, so that nothing left there can help or hide a mistake."""
        ...


class TargetEngine(Protocol):
    """A causal language model that extends cached rows."""

    vocab_size: int
    max_positions: int
    device: torch.device

    def new_cache(self, rows: int, capacity: int) -> TargetCache:
        """An empty cache of `rows` rows of at most `capacity` positions."""
        ...

    def extend(self, cache: TargetCache, rows: Tensor, tokens: Tensor) -> Block:
        """Run `tokens int64[R, N]` at the positions that follow the valid ones of `rows int64[R]`.

        Token `n` of a row sees the row's valid positions and the block's tokens up to itself. Lengths stay as they
        are: the caller adds what it keeps, so a block may be padded on the right. All tensors live on `device`.
        """
        ...

    def logits(self, final: Tensor) -> Tensor:
        """`[..., H]` final states to `[..., V]` logits."""
        ...
