"""The drafter as a module: one Llama layer whose attention reads the token's embedding beside the hidden state.

Formulas and names follow `LlamaForCausalLMEagle3` of SGLang and vLLM, so `state_dict` holds the exported names.
Serving convention: slot `i` reads token `x[i+1]` and `g_i = fuse(target states at i)` at rope position `i` and
predicts `x[i+2]`. Chain step `k >= 1` reads the previous draft and the previous layer output at position `i + k`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from eyrie.drafter.cache import DraftCache
from eyrie.drafter.config import DrafterConfig
from eyrie.target.rope import rope_frequencies


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, in fp32 or wider, as the engines compute it."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)


class Attention(nn.Module):
    """The four projections; the three input ones read `[embedding, hidden]`, `2H` wide. No biases."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, queries = 2 * config.hidden_size, config.num_attention_heads * config.head_dim
        pairs = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, pairs, bias=False)
        self.v_proj = nn.Linear(width, pairs, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """The single decoder layer (`midlayer`): its weights; the arithmetic is in `Drafter`, which training shares."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)


class Drafter(nn.Module):
    """An EAGLE-3 drafter. Buffers: `d2t int64[D]` (offsets: target id = draft id + d2t), `t2d bool[V]`.

    `embed_tokens [V, H]` is the target's, frozen, and no part of the exported file: engines share the target's own.
    """

    def __init__(self, config: DrafterConfig, d2t: Tensor, t2d: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.target_hidden_size, config.hidden_size, bias=False)
        self.fc_norm = (
            nn.ModuleList(RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(3))
            if config.fc_norm
            else None
        )
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", d2t.to(torch.int64).clone())
        self.register_buffer("t2d", t2d.to(torch.bool).clone())
        self.embed_tokens = skip_init(nn.Embedding, config.vocab_size, config.hidden_size)
        self.embed_tokens.weight.requires_grad_(False)
        self._rotary = Rotary(config)

    def fuse(self, aux: Tensor) -> Tensor:
        """The target's aux states `[..., 3Ht]` as the layer's hidden input `[..., H]`."""
        if self.fc_norm is not None:
            chunks = aux.split(self.config.target_hidden_size, dim=-1)
            aux = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        return self.fc(aux)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings `[..., H]` of target token ids `int64[...]`."""
        return self.embed_tokens(tokens)

    def layer(
        self,
        embeds: Tensor,
        hidden: Tensor,
        positions: Tensor,
        cache: DraftCache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """One decode of the layer: `embeds, hidden [B, N, H]`, rope `positions int64[B, N]` -> `[B, N, H]`.

        The result feeds the next draft step and `logits`. With a cache, the new keys and values are appended and
        each query sees its row's valid entries and the new ones up to itself; `mask bool[B, N, S]` (True: visible,
        `S` = entries up to the longest row) replaces that rule. Without one the `N` tokens are causal among themselves.
        """
        batch, count, _ = embeds.shape
        attention = self.midlayer.self_attn
        x = torch.cat([self.midlayer.input_layernorm(embeds), self.midlayer.hidden_norm(hidden)], dim=-1)
        rotation = self.rotation(positions)
        queries = rotate(self.heads(attention.q_proj(x)), rotation).transpose(1, 2)
        keys = rotate(self.heads(attention.k_proj(x)), rotation).transpose(1, 2)
        values = self.heads(attention.v_proj(x)).transpose(1, 2)
        if cache is not None:
            keys, values = cache.append(keys, values)
        if mask is None and cache is not None:
            mask = cache.visible(count)
        elif mask is None:
            mask = torch.ones(count, count, dtype=torch.bool, device=x.device).tril().expand(batch, -1, -1)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask[:, None],
            enable_gqa=self.config.num_attention_heads != self.config.num_key_value_heads,
        )  # fmt: skip
        return self.finish(hidden, mixed.transpose(1, 2).flatten(2))

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention: `hidden [..., H]` un-normed is the residual, `mixed [..., heads * head dim]`."""
        states = hidden + self.midlayer.self_attn.o_proj(mixed)
        states = states + self.midlayer.mlp(self.midlayer.post_attention_layernorm(states))
        return self.norm(states) if self.config.norm_output else states

    def logits(self, states: Tensor) -> Tensor:
        """Draft logits `[..., D]` of layer outputs `[..., H]`, normed once: here, or in `finish` with `norm_output`."""
        return self.lm_head(states if self.config.norm_output else self.norm(states))

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target token ids of draft ids."""
        return draft_ids + self.d2t[draft_ids]

    def heads(self, x: Tensor) -> Tensor:
        """`[..., heads * head dim]` -> `[..., heads, head dim]`."""
        return x.unflatten(-1, (-1, self.config.head_dim))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[..., head dim]` for rope positions `int64[...]`, in the weights' dtype."""
        return self._rotary(positions, self.fc.weight.dtype)


class Rotary:
    """Rotary frequencies, every static scaling included.

    No module: `.to(bfloat16)` must never reach the frequencies, which are fp32 in the engines too.
    """

    def __init__(self, config: DrafterConfig) -> None:
        rope = {
            "hidden_size": config.hidden_size,
            "num_attention_heads": config.num_attention_heads,
            "max_position_embeddings": config.max_position_embeddings,
            "rope_parameters": {**(config.rope_scaling or {}), "rope_theta": config.rope_theta},
        }
        self.frequencies, self.scale = rope_frequencies(rope, config.head_dim)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[..., head dim]` of `positions int64[...]`, computed in fp32."""
        angles = positions[..., None].float() * self.frequencies.to(positions.device)
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of `[..., heads, head dim]`, halves paired as Llama pairs them."""
    cos, sin = (part.unsqueeze(-2) for part in rotation)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
