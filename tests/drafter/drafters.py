"""Small random drafters for tests."""

from __future__ import annotations

from typing import Any

import torch

from eyrie.drafter.config import DrafterConfig
from eyrie.drafter.model import Drafter
from eyrie.shards.aux import AuxLayers

torch.set_num_threads(1)


def make_config(**changes: Any) -> DrafterConfig:
    """A drafter for a target of hidden size 64, 8 layers, 300 tokens; 96 of them drafted."""
    shape: dict[str, Any] = {
        "hidden_size": 64, "target_hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 24, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
        "vocab_size": 300, "draft_vocab_size": 96, "max_position_embeddings": 8192, "aux": AuxLayers(2, 4, 5, 8),
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return DrafterConfig(**{**shape, **changes})


def make_vocabulary(config: DrafterConfig, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """`(d2t, t2d)` of a random draft vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size].sort().values
    t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
    t2d[kept] = True
    return kept - torch.arange(len(kept)), t2d


def make_drafter(seed: int = 0, **changes: Any) -> Drafter:
    """A drafter with random weights; norms are not all ones, so that a forgotten one shows."""
    config = make_config(**changes)
    torch.manual_seed(seed)
    drafter = Drafter(config, *make_vocabulary(config))
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name == "embed_tokens.weight":
                parameter.normal_()
            else:
                parameter.normal_(std=0.1)
    return drafter
