"""The cheap look at acceptance while training: the slot mean over a fixed sample of held-out rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from eyrie.drafter.acceptance import joint_prefix, slot_mean
from eyrie.drafter.model import Drafter
from eyrie.train.batch import Batch
from eyrie.train.unroll import unroll

ROWS = 32  # held-out rows looked at


@torch.no_grad()
def matches(drafter: Drafter, batch: Batch) -> tuple[Tensor, Tensor]:
    """`(matches, counted)`, both `bool[n, K]` over the slots of step 0: where draft `k` is the target's greedy token,
    and where the turn still has a token for it.
    """
    first = batch.slots[0]
    right = torch.zeros(len(first), len(batch.slots), dtype=torch.bool, device=first.device)
    counted = torch.zeros_like(right)
    for step, (slots, states) in enumerate(zip(batch.slots, unroll(drafter, batch), strict=True)):
        drafts = drafter.to_target(drafter.logits(states).argmax(dim=-1))
        at = torch.searchsorted(first, slots)
        counted[at, step] = True
        right[at, step] = drafts == batch.argmax[torch.searchsorted(batch.labels, slots + 1 + step)]
    return right, counted


def measure(drafter: Drafter, batches: Iterable[Batch]) -> dict[str, Any]:
    """Slot mean at the trained chain length, joint prefix probability and plain accuracy per position."""
    drafter.eval()
    found = [matches(drafter, batch) for batch in batches]
    drafter.train()
    right, counted = (torch.cat(part).cpu() for part in zip(*found, strict=True))
    joint = joint_prefix(right, counted)
    accuracy = (right & counted).sum(dim=0).double() / counted.sum(dim=0).clamp(min=1)
    return {
        "slots": len(right),
        "slot_mean": slot_mean(joint, right.shape[1]),
        "joint": joint.tolist(),
        "accuracy": accuracy.tolist(),
    }
