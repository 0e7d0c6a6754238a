"""The slot mean: the cheap acceptance estimate, a pure function shared by training and evaluation."""

from __future__ import annotations

import torch
from torch import Tensor


def joint_prefix(matches: Tensor, counted: Tensor) -> Tensor:
    """Probability, per chain position, that all drafts up to it are right: `float64[K]`.

    `matches bool[n, K]`: at slot `n`, draft `k` equals the target's greedy token (a token outside the draft
    vocabulary is no match). `counted bool[n, K]`: the slot has a draft `k` at serving (the turn has not ended before
    it). Position `k` is averaged over its counted slots; a position without any gives 0.
    """
    prefix = matches.to(torch.int64).cumprod(dim=1).bool()
    slots = counted.sum(dim=0)
    return (prefix & counted).sum(dim=0).double() / slots.clamp(min=1)


def slot_mean(joint: Tensor, chain_length: int) -> float:
    """Tokens per target pass at a random slot, the target's own (bonus) token included: 1 + sum of joint prefixes."""
    return 1.0 + float(joint[:chain_length].sum())
