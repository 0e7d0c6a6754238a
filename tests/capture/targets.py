"""Tiny targets and token shards for the capture tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from eyrie.shards.tokens import ShardEntry, TokenRow, write_manifest, write_shard
from eyrie.target.receipt import TargetReceipt, make_receipt

VOCAB = 300


def tiny_llama(layers: int = 8, hidden: int = 32, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama whose norms differ from one, so that a state before a norm is no state after it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    return model


class ConstantLayer(LlamaDecoderLayer):
    """A decoder layer whose output is its own number everywhere."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full_like(hidden_states, float(self.self_attn.layer_idx))


def constant_llama(layers: int) -> LlamaForCausalLM:
    """A target whose layer j outputs the constant j."""
    model = tiny_llama(layers, hidden=16)
    for layer in model.model.layers:
        layer.__class__ = ConstantLayer
    return model


def save_target(folder: Path, model: LlamaForCausalLM) -> TargetReceipt:
    """The model as a prepared target in `folder`, with its receipt."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return make_receipt("tiny", folder, {"source": "test"})


def make_rows(lengths: Sequence[int], seed: int = 0, prefix: str = "row") -> list[TokenRow]:
    """Token rows of these lengths, whose last tokens the target is said to have generated."""
    random = np.random.default_rng(seed)
    return [
        TokenRow(f"{prefix}-{i}", i, 1, random.integers(0, VOCAB, length).astype(np.int32), [(1, length)])
        for i, length in enumerate(lengths)
    ]


def write_tokens(folder: Path, target: str, shards: Sequence[Sequence[int]], seed: int = 0) -> list[ShardEntry]:
    """A dataset of token shards with rows of these lengths; an empty list is an empty shard."""
    entries = [
        write_shard(folder / f"{k:05d}.parquet", make_rows(lengths, seed + k), dataset=folder.name, target=target)
        for k, lengths in enumerate(shards)
    ]
    write_manifest(folder, dataset=folder.name, target=target, slice={}, shards=entries, dropped={}, counted={})
    return entries


def make_slice(**capture: Any) -> dict[str, Any]:
    """A capture slice with small batches."""
    settings = {"engine": "transformers", "aux_layers": None, "store_dtype": "float32", "batch_tokens": 64, **capture}
    return {"capture": settings, "target": {"dtype": "float32", "trust_remote_code": False}}
