"""`TargetEngine` over any Hugging Face causal model, by a cache that scatters each row at its own position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from eyrie.errors import MissingError
from eyrie.evaluate.engine import Block


class RaggedCache(Cache):
    """Keys and values `[B, heads, capacity, width]` per layer, allocated by the first block that a layer sees."""

    def __init__(self, layers: int, rows: int, capacity: int, device: torch.device) -> None:
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.capacity = capacity
        self.rows = torch.zeros(0, dtype=torch.int64, device=device)  # of the block under way
        self.positions = torch.zeros(0, 0, dtype=torch.int64, device=device)
        self.span = 0  # columns of the cache that the block under way may see
        super().__init__(layers=[_RaggedLayer(self) for _ in range(layers)])

    @torch.inference_mode()
    def forget(self) -> None:
        """Zero keys and values beyond each row's length."""
        beyond = torch.arange(self.capacity, device=self.lengths.device) >= self.lengths[:, None]
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys.masked_fill_(beyond[:, None, :, None], 0)
                layer.values.masked_fill_(beyond[:, None, :, None], 0)


class _RaggedLayer(CacheLayerMixin):
    def __init__(self, owner: RaggedCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, capacity = len(self.owner.lengths), self.owner.capacity
        self.keys = key_states.new_zeros(rows, key_states.shape[1], capacity, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        where = (owner.rows[:, None], slice(None), owner.positions)  # indexed shape: [R, N, heads, width]
        self.keys[where] = key_states.transpose(1, 2)
        self.values[where] = value_states.transpose(1, 2)
        return self.keys[owner.rows, :, : owner.span], self.values[owner.rows, :, : owner.span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.span, 0

    def get_seq_length(self) -> int:
        return self.owner.span - self.owner.positions.shape[-1]

    def get_max_length(self) -> int:
        return self.owner.capacity


class TransformersEngine:
    """Any causal model of transformers with full attention; the slow and general engine.

    `model` is the causal model, `aux` the three indices into its `hidden_states` (input of layer j).
    Raises MissingError for sliding-window or linear attention, whose masks and caches differ per layer.
    """

    def __init__(self, model: torch.nn.Module, aux: tuple[int, int, int]) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        if kinds:
            raise MissingError(f"target: attention of kind {', '.join(sorted(kinds))} cannot be evaluated yet")
        self.model = model
        self.aux = aux
        self.layers = int(config.num_hidden_layers)
        self.vocab_size = int(config.vocab_size)
        self.max_positions = int(config.max_position_embeddings)
        self.device = next(model.parameters()).device

    def new_cache(self, rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(self.layers, rows, capacity, self.device)

    @torch.inference_mode()
    def extend(self, cache: RaggedCache, rows: Tensor, tokens: Tensor) -> Block:
        start = cache.lengths[rows]
        cache.rows = rows
        cache.positions = start[:, None] + torch.arange(tokens.shape[1], device=self.device)
        cache.span = int(cache.positions.max()) + 1
        mask = torch.arange(cache.span, device=self.device) <= cache.positions[:, None, :, None]  # [R, 1, N, span]
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=cache.positions,
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=True,
            logits_to_keep=1,
        )
        states = out.hidden_states
        return Block(final=states[-1], aux=torch.cat([states[layer] for layer in self.aux], dim=-1))

    @torch.inference_mode()
    def logits(self, final: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(final)
