"""A Llama decoder for CPUs without a compiler: packed weights, a static cache, and rows that do not see each other.

Used by the embedded gateway and by evaluation. Compared with the modelling code of transformers it fuses q, k and v
into one product, packs every weight once for oneDNN (1.3 to 2 times the rate of a plain product at 8 to 64 rows),
never repeats grouped keys, and touches the cache only up to the longest row.

Invariance: a row's results do not depend on its slot, on the rows beside it, or on how far the attention extends,
because every product accumulates over its inner dimension in a fixed order, masked keys contribute exact zeros, and
extents are multiples of `EXTENT`. The number of tokens per row and call (N) does matter in the last bits, as it
picks another attention kernel. `tests/target/test_llama.py` holds the engine to this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eyrie.errors import InputError
from eyrie.files import read_json
from eyrie.target.packed import PackedLinear
from eyrie.target.rope import rope_frequencies
from eyrie.target.support import check_supported

EXTENT = 64  # attention reads the cache in multiples of so many positions
GROUP_ROWS = 8  # rows that share one extent


@dataclass(frozen=True)
class LlamaCache:
    """Keys and values `[layers, B, kv_heads, max_len, head_dim]`, zeros at first.

    The cache has no state of its own: the caller says how many positions of each row are valid (`lengths`), so
    dropping rejected tokens is passing a smaller length. Entries beyond a row's length are never read.
    """

    k: Tensor
    v: Tensor

    @property
    def batch(self) -> int:
        return self.k.shape[1]

    @property
    def max_len(self) -> int:
        return self.k.shape[3]

    def rows(self, start: int, stop: int) -> LlamaCache:
        """The same storage, seen as the cache of rows start..stop-1."""
        return LlamaCache(self.k[:, start:stop], self.v[:, start:stop])

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of row `target` equal to those of row `source`."""
        self.k[:, target, :, :length] = self.k[:, source, :, :length]
        self.v[:, target, :, :length] = self.v[:, source, :, :length]

    def resized(self, max_len: int) -> LlamaCache:
        """A copy with room for `max_len` positions (rounded up to EXTENT)."""
        size = -(-max_len // EXTENT) * EXTENT
        keep = min(size, self.max_len)
        shape = (*self.k.shape[:3], size, self.k.shape[4])
        grown = LlamaCache(torch.zeros(shape), torch.zeros(shape))
        grown.k[:, :, :, :keep] = self.k[:, :, :, :keep]
        grown.v[:, :, :, :keep] = self.v[:, :, :, :keep]
        return grown


@dataclass(frozen=True)
class _Group:
    """Neighbouring rows start..stop-1 whose attention reaches equally far; mask [rows * kv_heads, g * N, extent]."""

    start: int
    stop: int
    extent: int
    mask: Tensor


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: PackedLinear
    out: PackedLinear
    post_norm: Tensor
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear


class Llama:
    """The target on the CPU in float32. Not a module: it has no gradients and its weights are packed."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor], where: str = "model") -> None:
        """`config` is config.json, `weights` the checkpoint's tensors by their names in transformers.

        Raises InputError when the model is no plain Llama or a tensor is missing.
        """
        check_supported(config, where)
        self.hidden_size: int = config["hidden_size"]
        self.vocab_size: int = config["vocab_size"]
        self.num_layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config.get("num_key_value_heads") or self.heads
        self.head_dim: int = config.get("head_dim") or self.hidden_size // self.heads
        self.eps: float = config["rms_norm_eps"]
        self.max_positions: int = config["max_position_embeddings"]

        def take(name: str) -> Tensor:
            try:
                return weights[name].float()
            except KeyError:
                raise InputError(f"{where}: the checkpoint has no tensor {name}") from None

        self.embed_tokens = take("model.embed_tokens.weight")
        self.norm = take("model.norm.weight")
        tied = config.get("tie_word_embeddings", False) and "lm_head.weight" not in weights
        self.lm_head = PackedLinear(self.embed_tokens if tied else take("lm_head.weight"))
        self.layers = [self._layer(take, f"model.layers.{i}.") for i in range(self.num_layers)]
        self._frequencies, self._rope_scale = rope_frequencies(config, self.head_dim)
        self._rope = torch.empty(0, self.head_dim // 2, dtype=torch.complex64)

    @classmethod
    def load(cls, folder: str | Path) -> Llama:
        """The model in a Hugging Face folder (safetensors). Raises InputError naming what is missing."""
        folder = Path(folder)
        config = read_json(folder / "config.json", hint="run `snakemake target`")
        check_supported(config, str(folder))
        return cls(config, read_weights(folder), str(folder))

    def _layer(self, take: Any, prefix: str) -> _Layer:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        q = self._interleave(take(attention + "q_proj.weight"))
        k = self._interleave(take(attention + "k_proj.weight"))
        return _Layer(
            input_norm=take(prefix + "input_layernorm.weight"),
            qkv=PackedLinear(torch.cat((q, k, take(attention + "v_proj.weight")))),
            out=PackedLinear(take(attention + "o_proj.weight")),
            post_norm=take(prefix + "post_attention_layernorm.weight"),
            gate=PackedLinear(take(mlp + "gate_proj.weight")),
            up=PackedLinear(take(mlp + "up_proj.weight")),
            down=PackedLinear(take(mlp + "down_proj.weight")),
        )

    def _interleave(self, weight: Tensor) -> Tensor:
        """Order each head's rows 0, d/2, 1, d/2+1, ...: rotary pairs become neighbours, one complex product rotates
        them, and q.k stays the same as both are reordered alike."""
        halves = weight.view(-1, 2, self.head_dim // 2, weight.shape[1])
        return halves.transpose(1, 2).reshape(weight.shape)

    def _rotations(self, length: int) -> Tensor:
        """e^(i * position * frequency) for positions below `length`: complex64 [>=length, head_dim/2]."""
        if self._rope.shape[0] < length:
            size = -(-length // 1024) * 1024
            angles = torch.outer(torch.arange(size, dtype=torch.float32), self._frequencies)
            self._rope = torch.polar(torch.full_like(angles, self._rope_scale), angles)
        return self._rope

    def new_cache(self, batch: int, max_len: int) -> LlamaCache:
        """An empty cache for `batch` rows of at most `max_len` tokens (rounded up to EXTENT)."""
        size = -(-max_len // EXTENT) * EXTENT
        shape = (self.num_layers, batch, self.kv_heads, size, self.head_dim)
        return LlamaCache(torch.zeros(shape), torch.zeros(shape))

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, lengths: Tensor, cache: LlamaCache, aux_layers: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Append N tokens to each row and return what the model makes of them.

        `ids` int64 [B, N]: token n of row b stands at position lengths[b] + n and sees positions 0 .. lengths[b] + n.
        `lengths` int64 [B]: valid cached tokens per row; rows may differ. The N keys and values are written behind
        them; the caller then passes lengths + (tokens it keeps). Padding at the right end of a row is harmless: real
        tokens never see it and the next call overwrites it.

        Returns the final hidden states after the last norm [B, N, H], and the aux states [B, N, len(aux_layers) * H]:
        entry i of transformers' `hidden_states` (input of decoder layer i) for each i in `aux_layers`, 0 <= i < layers.
        Raises ValueError when a row would outgrow the cache.
        """
        batch, count = ids.shape
        end = int(lengths.max()) + count
        if batch > cache.batch or end > cache.max_len:
            raise ValueError(f"{batch} rows of {end} tokens do not fit a cache of {cache.batch} x {cache.max_len}")
        if any(not 0 <= layer < self.num_layers for layer in aux_layers):
            raise ValueError(f"aux layers {tuple(aux_layers)} must lie in 0..{self.num_layers - 1}")
        positions = lengths[:, None] + torch.arange(count)  # [B, N]
        rotation = self._rotations(end)[positions][:, :, None]  # [B, N, 1, d/2]
        groups = [self._group(positions, start, cache) for start in range(0, batch, GROUP_ROWS)]
        heads_at = torch.arange(batch)[:, None, None] * self.kv_heads + torch.arange(self.kv_heads)
        slots = (heads_at * cache.max_len + positions[..., None]).flatten()  # [B * N * kv_heads]

        x = F.embedding(ids, self.embed_tokens)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            if index in aux_layers:
                kept[index] = x
            mixed = layer.qkv(F.rms_norm(x, (self.hidden_size,), layer.input_norm, self.eps))
            attended = self._attend(mixed, rotation, groups, slots, cache, index)
            x = layer.out.plus(attended, x)
            normed = F.rms_norm(x, (self.hidden_size,), layer.post_norm, self.eps)
            x = layer.down.plus(layer.up.times(normed, layer.gate.silu(normed)), x)
        final = F.rms_norm(x, (self.hidden_size,), self.norm, self.eps)
        aux = torch.cat([kept[i] for i in aux_layers], -1) if aux_layers else x.new_empty(batch, count, 0)
        return final, aux

    def _group(self, positions: Tensor, start: int, cache: LlamaCache) -> _Group:
        """Attention of GROUP_ROWS rows reaches as far as the longest of them, not of the whole batch."""
        positions = positions[start : start + GROUP_ROWS]
        rows, count = positions.shape
        extent = min(-(-(int(positions.max()) + 1) // EXTENT) * EXTENT, cache.max_len)
        hidden = torch.arange(extent) > positions[..., None]  # [rows, N, extent]
        mask = torch.zeros(rows, count, extent).masked_fill_(hidden, float("-inf"))
        mask = mask[:, None, None].expand(-1, self.kv_heads, self.heads // self.kv_heads, -1, -1)
        return _Group(start, start + rows, extent, mask.reshape(rows * self.kv_heads, -1, extent))

    def _attend(
        self, mixed: Tensor, rotation: Tensor, groups: list[_Group], slots: Tensor, cache: LlamaCache, layer: int
    ) -> Tensor:
        """Rotate q and k, store k and v, attend: [B, N, (heads + 2 kv) d] -> [B, N, heads * d].

        The query heads that share keys become rows of one product with them, so keys are never repeated.
        """
        batch, count, _ = mixed.shape
        heads, kv, dim = self.heads, self.kv_heads, self.head_dim
        mixed = mixed.view(batch, count, heads + 2 * kv, dim)
        pairs = torch.view_as_complex(mixed[:, :, : heads + kv].unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * rotation).flatten(-2)
        k_store, v_store = cache.k[layer, :batch], cache.v[layer, :batch]
        k_store.view(-1, dim).index_copy_(0, slots, rotated[:, :, heads:].reshape(-1, dim))
        v_store.view(-1, dim).index_copy_(0, slots, mixed[:, :, heads + kv :].reshape(-1, dim))
        q = rotated[:, :, :heads].unflatten(2, (kv, -1)).permute(0, 2, 3, 1, 4).reshape(batch * kv, -1, dim)
        keys, values = k_store.flatten(0, 1), v_store.flatten(0, 1)
        found = []
        for group in groups:
            rows = slice(group.start * kv, group.stop * kv)
            near = keys[rows, : group.extent].transpose(1, 2)
            scores = torch.baddbmm(group.mask, q[rows], near, alpha=dim**-0.5)
            found.append(torch.bmm(torch.softmax(scores, -1), values[rows, : group.extent]))
        out = torch.cat(found) if len(found) > 1 else found[0]
        return out.view(batch, kv, -1, count, dim).permute(0, 3, 1, 2, 4).reshape(batch, count, heads * dim)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """The language-model head on final hidden states: [..., H] -> [..., V]."""
        return self.lm_head(hidden)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors file(s), by name."""
    from safetensors.torch import load_file

    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    index = read_json(folder / "model.safetensors.index.json", hint="run `snakemake target`")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(index["weight_map"].values())):
        weights.update(load_file(folder / name))
    return weights
