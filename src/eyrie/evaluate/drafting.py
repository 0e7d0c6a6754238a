"""Chains of drafts for a batch whose rows stand at lengths of their own, as an engine serves them.

The drafter's cache holds first-step keys of the slots behind; a chain appends the keys of its later steps and drops
them again, so that after verification the true states of the target rebuild what the drafts had guessed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyrie.drafter.model import Drafter


class SlotCache:
    """Keys and values `[B, heads, capacity, width]` of the drafter's layer, for any rows of the batch at a time.

    Takes the place of `DraftCache`, which serves all of its rows or none: here the layer appends at the columns that
    `use` named.
    """

    def __init__(self, rows: int, capacity: int, device: torch.device) -> None:
        self.shape = (rows, capacity)
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.rows = torch.zeros(0, dtype=torch.int64, device=device)
        self.columns = torch.zeros(0, 0, dtype=torch.int64, device=device)

    def use(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Aim the next append at `columns int64[R, N]` of `rows int64[R]`; returns the mask `bool[R, N, S]` under
        which each query sees the columns up to its own."""
        self.rows, self.columns = rows, columns
        return torch.arange(int(columns.max()) + 1, device=columns.device) <= columns[:, :, None]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write `[R, heads, N, width]`; returns what the rows hold up to the longest, `[R, heads, S, width]`."""
        if self.keys is None or self.values is None:
            rows, capacity = self.shape
            self.keys = keys.new_zeros(rows, keys.shape[1], capacity, keys.shape[3])
            self.values = values.new_zeros(rows, values.shape[1], capacity, values.shape[3])
        where = (self.rows[:, None], slice(None), self.columns)
        self.keys[where] = keys.transpose(1, 2)
        self.values[where] = values.transpose(1, 2)
        span = int(self.columns.max()) + 1
        return self.keys[self.rows, :, :span], self.values[self.rows, :, :span]


class ChainDrafter:
    """Drafts greedily for `rows` rows of at most `capacity` slots."""

    def __init__(self, drafter: Drafter, rows: int, capacity: int) -> None:
        self.drafter = drafter
        self.device = drafter.d2t.device
        self.cache = SlotCache(rows, capacity, self.device)
        self.slots = torch.zeros(rows, dtype=torch.int64, device=self.device)  # first-step slots held per row

    @torch.inference_mode()
    def follow(self, rows: Tensor, tokens: Tensor, aux: Tensor, counts: Tensor) -> Tensor:
        """Feed true states: `aux [R, N, 3H]` of the slots that follow the held ones and `tokens int64[R, N]`, each
        one position to the right of its slot. Only the first `counts int64[R]` of a row are real. Returns the layer's
        output at each row's last real slot, `[R, H]`.
        """
        slots = self.slots[rows][:, None] + torch.arange(tokens.shape[1], device=self.device)
        mask = self.cache.use(rows, slots)
        embeds, hidden = self.drafter.embed(tokens), self.drafter.fuse(aux)
        out = self.drafter.layer(embeds, hidden, slots, self.cache, mask)
        self.slots[rows] += counts
        return out[torch.arange(len(rows), device=self.device), counts - 1]

    @torch.inference_mode()
    def draft(self, rows: Tensor, state: Tensor, chain: int) -> Tensor:
        """`chain` drafts per row, `int64[R, chain]`, from the layer's output `state [R, H]` at the last held slot."""
        drafts = torch.empty(len(rows), chain, dtype=torch.int64, device=self.device)
        last = self.slots[rows] - 1  # slot i; step k stands at rope position i + k, in the column after the last
        state = state[:, None]
        for step in range(chain):
            if step:
                columns = (last + step)[:, None]
                mask = self.cache.use(rows, columns)
                token = drafts[:, step - 1 : step]
                state = self.drafter.layer(self.drafter.embed(token), state, columns, self.cache, mask)
            drafts[:, step] = self.drafter.to_target(self.drafter.logits(state)[:, 0].argmax(-1))
        return drafts
