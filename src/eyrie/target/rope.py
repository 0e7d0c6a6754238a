"""Rotary frequencies, from the rope settings of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def rope_frequencies(config: Mapping[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """Frequencies `float32[head_dim / 2]` and the factor on cos and sin, for the rope type that `config` names.

    Plain rope is `theta**(-2i / head_dim)`; every scaled kind is left to transformers, which is imported only then:
    its model code takes seconds to load.
    """
    rope = {**(config.get("rope_parameters") or config.get("rope_scaling") or {})}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return 1.0 / theta**exponents, 1.0
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**{**config, "head_dim": head_dim}))
    return rotary.inv_freq.float(), float(rotary.attention_scaling)
