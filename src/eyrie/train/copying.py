"""Heads that copy, set before the first step: what followed the same token earlier in the text is a good draft.

A drafter learns this late by itself, since it takes three projections that mean nothing alone: a query that names the
token `x[i+1]`, a key that names the token `x[p]` under an earlier slot `p`, and a value that says `x[p+1]`, which the
head must be able to read (an induction head; Olsson et al. 2022). All three can be had in closed form. The token
half of slot `p`'s input is the embedding of `x[p+1]`: the value, and at slot `i` the query. The token `x[p]` itself is
read off the low aux state by ridge regression and carried through `fc` in the directions that the high aux state uses
least. `benchmarks/copying.py` prints what this is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eyrie.drafter.model import Drafter

CARRIED = 2.0  # size of a token's code in `fc`'s output, beside a high aux state of size 1
SCORE = 12.0  # attention score of a slot under the same token; of others it is near 0
VOICE = 1.5  # what a copied token adds to the residual, in units of the head's rows
SLOW = 2  # one in so many rotary pairs, the slowest, names tokens: the fast ones depend on the distance
RIDGE = 1e-2  # of the mean of the diagonal
OTHERS = 0.1  # what is left of the random start in the keys and values that copying heads share with others


@dataclass(frozen=True)
class Sample:
    """Tokens `int64[T]` and the target's aux states `[T, 3H]` after each, from the training rows."""

    tokens: Tensor
    aux: Tensor


@torch.no_grad()
def add_copying_heads(drafter: Drafter, head: Tensor, sample: Sample, generator: torch.Generator) -> int:
    """Turn the first query head of each key/value head into one that copies; returns how many there are.

    With one query head per key/value head, every second one stays as it was. `head [V, H]` is the target's. Call it
    when `fc` already passes the high aux state.
    """
    config, attention = drafter.config, drafter.midlayer.self_attn
    size, width = config.hidden_size, config.head_dim
    group = config.num_attention_heads // config.num_key_value_heads
    chosen = range(0, config.num_key_value_heads, 1 if group > 1 else 2)
    lanes = _lanes(drafter, size // (4 * len(chosen)))
    low, _, high = (_normed(part) for part in sample.aux.float().split(config.target_hidden_size, dim=-1))
    embeds = _normed(drafter.embed(sample.tokens))

    variance, axes = torch.linalg.eigh(embeds.T @ embeds / len(embeds))  # ascending
    codes = len(lanes) * len(chosen)
    # The first axis is what all tokens share; the code is white over the next ones, mixed so that each head hears all.
    order = range(size - 2, size - 2 - codes, -1)
    mixed = torch.linalg.qr(torch.randn(codes, codes, generator=generator))[0]
    code = mixed @ (axes[:, order] * variance[order].clamp(min=1e-6).rsqrt()).T  # [codes, H]
    quiet = torch.linalg.eigh(high.T @ high / len(high))[1][:, :codes]
    from_low = _ridge(low, embeds @ code.T)  # [codes, Ht]
    drafter.fc.weight[:, : config.target_hidden_size] += CARRIED * quiet @ from_low

    said = axes[:, range(size - 1, size - 1 - width * len(chosen), -1)].T if width * len(chosen) < size else axes.T
    seen, counts = sample.tokens.unique(return_counts=True)
    weight = counts.float().sqrt()[:, None]
    rows = head[seen].float()
    heard = _normed(drafter.embed(seen)) @ said.T
    to_head = _ridge(heard * weight, rows / rows.pow(2).mean().sqrt() * weight)  # [H, values]
    gain = SCORE * width**0.5 / (CARRIED * len(lanes))
    for number, pair in enumerate(chosen):
        query = pair * group * width
        keys, values = slice(pair * width, (pair + 1) * width), slice(number * width, (number + 1) * width)
        part = slice(number * len(lanes), (number + 1) * len(lanes))
        count = len(said[values])
        attention.k_proj.weight[keys] *= OTHERS
        attention.k_proj.weight[pair * width + lanes] = 0
        attention.k_proj.weight[pair * width + lanes, size:] = quiet[:, part].T
        attention.v_proj.weight[keys] *= OTHERS
        attention.v_proj.weight[keys, :size][:count] = said[values]
        attention.q_proj.weight[query : query + width] = 0
        attention.q_proj.weight[query + lanes, :size] = gain * code[part]
        attention.o_proj.weight[:, query : query + count] = VOICE * to_head[:, values]
    return len(chosen)


def _lanes(drafter: Drafter, most: int) -> Tensor:
    """Places within a head of its slowest rotary pairs, `2 * most // 2` at most."""
    half = drafter.config.head_dim // 2
    slow = torch.arange(half - max(1, min(half // SLOW, most // 2)), half)  # frequencies fall with the place
    return torch.cat([slow, slow + half])


def _normed(states: Tensor) -> Tensor:
    """As the layer's norms read them at the start, `[..., H]`."""
    return F.rms_norm(states.float(), states.shape[-1:])


def _ridge(given: Tensor, wanted: Tensor) -> Tensor:
    """The map `[m, n]` from `given [T, n]` to `wanted [T, m]` with the least squared error, held back a little."""
    gram = given.T @ given
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram, given.T @ wanted).T


def sample_of(rows: Sequence[tuple[Tensor, Tensor]]) -> Sample:
    """Rows `(tokens [T], aux [T, 3H])` as one sample."""
    return Sample(torch.cat([tokens for tokens, _ in rows]).long(), torch.cat([aux for _, aux in rows]))
