"""`TargetEngine` over the built-in CPU engine: plain Llama models in float32, packed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from eyrie.evaluate.engine import Block
from eyrie.target.llama import Llama, LlamaCache


class PackedCache:
    """A `LlamaCache` whose rows may be asked for in any selection.

    The engine below runs the leading rows of its cache, so rows move: `place[row]` is where a row stands. Rows move
    only when the selection changes, that is when an answer ends or begins.
    """

    def __init__(self, store: LlamaCache) -> None:
        self.store = store
        self.lengths = torch.zeros(store.batch, dtype=torch.int64)
        self.place = torch.arange(store.batch)

    @torch.inference_mode()
    def lead(self, rows: Tensor) -> None:
        """Move `rows` to the leading places, in their order."""
        for want, row in enumerate(rows.tolist()):
            have = int(self.place[row])
            if have == want:
                continue
            other = int((self.place == want).nonzero())
            for part in (self.store.k, self.store.v):
                part[:, [want, have]] = part[:, [have, want]]
            self.place[row], self.place[other] = want, have

    @torch.inference_mode()
    def forget(self) -> None:
        """Zero keys and values beyond each row's length."""
        for row, place in enumerate(self.place.tolist()):
            self.store.k[:, place, :, int(self.lengths[row]) :] = 0
            self.store.v[:, place, :, int(self.lengths[row]) :] = 0


class PackedEngine:
    """Runs `Llama` for evaluation; `aux` are the three `hidden_states` indices that the drafter reads."""

    device = torch.device("cpu")

    def __init__(self, model: Llama, aux: tuple[int, int, int]) -> None:
        self.model = model
        self.aux = aux
        self.vocab_size = model.vocab_size
        self.max_positions = model.max_positions

    def new_cache(self, rows: int, capacity: int) -> PackedCache:
        return PackedCache(self.model.new_cache(rows, capacity))

    def extend(self, cache: PackedCache, rows: Tensor, tokens: Tensor) -> Block:
        cache.lead(rows)
        final, aux = self.model.forward(tokens, cache.lengths[rows], cache.store, self.aux)
        return Block(final, aux)

    def logits(self, final: Tensor) -> Tensor:
        return self.model.logits(final)
