"""The training-time test: the drafter's unrolled steps over packed rows, at the trained slots only.

Step 0 has one key per slot, causal within its row; each later step adds one key of the same slot, so step `k` of a
slot attends the step-0 keys up to the slot and `k` keys of its own: no [kT, kT] mask exists. Only trained slots have
queries, and everything after the keys runs on them alone; slots of the prompt cost a fusion and two projections.

The token half of the attention input is the same embedding at every step, shifted by one, so it is projected once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eyrie.drafter.model import Drafter, rotate
from eyrie.train.batch import Batch


def unroll(drafter: Drafter, batch: Batch) -> list[Tensor]:
    """The layer's outputs `[n_k, H]` at the slots of each step `k`, ready for `Drafter.logits`."""
    layer, hidden_size = drafter.midlayer, drafter.config.hidden_size
    attention = layer.self_attn
    weight = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    of_token, of_hidden = weight.split(hidden_size, dim=1)
    queries, pairs = attention.q_proj.out_features, attention.k_proj.out_features
    tokens = F.linear(layer.input_layernorm(drafter.embed(batch.tokens)), of_token)  # [N, q + k + v]
    fused = drafter.fuse(batch.aux)
    normed = layer.hidden_norm(fused)
    # The last token of the batch has no successor: its slot is never a key (a row ends at its last label).
    following = torch.cat([tokens[1:, queries:], tokens[-1:, queries:]])
    keys, values = (F.linear(normed, of_hidden[queries:]) + following).split(pairs, dim=-1)
    keys = rotate(drafter.heads(keys), drafter.rotation(batch.positions))
    attend = CausalRows(drafter, batch, keys, drafter.heads(values))

    outputs: list[Tensor] = []
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    slots, hidden = batch.slots[0], fused[batch.slots[0]]
    for step, wanted in enumerate(batch.slots):
        if step:
            kept = torch.searchsorted(slots, wanted)
            slots, hidden = wanted, outputs[-1][kept]
            own_keys, own_values = [x[kept] for x in own_keys], [x[kept] for x in own_values]
            projected = F.linear(layer.hidden_norm(hidden), of_hidden) + tokens[slots + 1 + step]
        else:
            projected = F.linear(normed[slots], of_hidden[:queries]) + tokens[slots + 1, :queries]
        rotation = drafter.rotation(batch.positions[slots] + step)
        query = rotate(drafter.heads(projected[:, :queries]), rotation)
        if step:
            key, value = projected[:, queries:].split(pairs, dim=-1)
            own_keys.append(rotate(drafter.heads(key), rotation))
            own_values.append(drafter.heads(value))
        mixed = attend(query, slots, own_keys, own_values)
        outputs.append(drafter.finish(hidden, mixed))
    return outputs


class CausalRows:
    """Attention of trained slots over their row's step-0 keys and their own later keys, one row at a time."""

    def __init__(self, drafter: Drafter, batch: Batch, keys: Tensor, values: Tensor) -> None:
        """`keys, values [N, kv heads, head dim]` of step 0, keys rotated."""
        config = drafter.config
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.scale = config.head_dim**-0.5
        self.offsets = batch.offsets
        self.keys = keys.transpose(0, 1)  # [kv heads, N, head dim]
        self.values = values.transpose(0, 1)

    def __call__(
        self, query: Tensor, slots: Tensor, own_keys: Sequence[Tensor], own_values: Sequence[Tensor]
    ) -> Tensor:
        """`query [n, heads, head dim]` at flat `slots int64[n]`, own keys and values `[n, kv heads, head dim]` of the
        later steps -> `[n, heads * head dim]`.
        """
        grouped = (query * self.scale).unflatten(1, (-1, self.groups))  # [n, kv heads, groups, head dim]
        own = [torch.einsum("nhgd,nhd->hgn", grouped, key) for key in own_keys]
        bounds = torch.searchsorted(slots, torch.tensor(self.offsets, device=slots.device)).tolist()
        mixed = []
        for row, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
            if start == end:
                continue
            first, last = self.offsets[row], int(slots[end - 1]) + 1  # keys beyond the last query are never seen
            keys, values = self.keys[:, first:last], self.values[:, first:last]
            part = grouped[start:end].permute(1, 2, 0, 3)  # [kv heads, groups, n, head dim]
            scores = torch.matmul(part.flatten(1, 2), keys.transpose(1, 2)).unflatten(1, part.shape[1:3])
            hidden = torch.arange(first, last, device=slots.device) > slots[start:end, None]
            scores = scores.masked_fill(hidden, float("-inf"))
            scores = torch.cat([scores, *[x[:, :, start:end, None] for x in own]], dim=-1)
            weights = scores.softmax(dim=-1)
            out = torch.matmul(weights[..., : last - first].flatten(1, 2), values).unflatten(1, part.shape[1:3])
            for step, value in enumerate(own_values):
                share = weights[..., last - first + step, None]  # [kv heads, groups, n, 1]
                out = out + share * value[start:end].transpose(0, 1)[:, None]
            mixed.append(out.permute(2, 0, 1, 3).flatten(1))
        return torch.cat(mixed) if mixed else query.flatten(1)
