"""Keys and values of the draft layer for a batch of sequences that grow and shrink each at its own pace."""

from __future__ import annotations

import torch
from torch import Tensor


class DraftCache:
    """Keys and values `[B, kv heads, capacity, head dim]`; of row `b` the first `lengths[b]` entries are valid.

    `append` writes behind each row's own valid entries, so rows of different lengths never need padding between
    them; `truncate` forgets a tail, which is how rejected drafts are dropped. Keys are stored rotated.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor  # int64[B]

    def __init__(self) -> None:
        """An empty cache; the first `append` fixes batch, heads, dtype and device."""
        self.lengths = torch.zeros(0, dtype=torch.int64)
        self.keys = self.values = torch.zeros(0, 0, 0, 0)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add `N` entries `[B, kv heads, N, head dim]` to every row.

        Returns keys and values up to the longest row, `[B, kv heads, S, head dim]`.
        """
        batch, heads, count, size = keys.shape
        if not len(self.lengths):
            self.keys, self.values = keys.new_zeros(batch, heads, 0, size), values.new_zeros(batch, heads, 0, size)
            self.lengths = torch.zeros(batch, dtype=torch.int64, device=keys.device)
        places = self.lengths[:, None] + torch.arange(count, device=keys.device)  # [B, N]
        longest = int(places.max()) + 1
        self._reserve(longest)
        rows = torch.arange(batch, device=keys.device)[:, None]
        self.keys[rows, :, places] = keys.transpose(1, 2)
        self.values[rows, :, places] = values.transpose(1, 2)
        self.lengths = self.lengths + count
        return self.keys[:, :, :longest], self.values[:, :, :longest]

    def visible(self, count: int) -> Tensor:
        """`bool[B, N, S]` for the `count` entries appended last: each sees its row's earlier ones and up to itself."""
        own = self.lengths[:, None] - count + torch.arange(count, device=self.lengths.device)
        return torch.arange(int(self.lengths.max()), device=own.device) <= own[..., None]

    def truncate(self, lengths: Tensor) -> None:
        """Keep the first `lengths[b]` entries of each row (`int64[B]`, none above the present length)."""
        if bool((lengths > self.lengths).any()):
            raise ValueError("a draft cache cannot be truncated to more entries than it holds")
        self.lengths = lengths.clone()

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows (`int64[R]`), in that order: finished sequences leave the batch."""
        self.keys, self.values, self.lengths = self.keys[rows], self.values[rows], self.lengths[rows]

    def _reserve(self, size: int) -> None:
        have = self.keys.shape[2]
        if size <= have:
            return
        capacity = max(size, 2 * have, 64)
        for name in ("keys", "values"):
            old = getattr(self, name)
            # Zeros, not empty memory: entries that a row does not have are masked, and 0 * NaN would still be NaN.
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, :have] = old
            setattr(self, name, new)
