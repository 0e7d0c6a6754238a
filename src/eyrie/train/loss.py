"""The distillation loss: KL to the target over the draft vocabulary, in fp32, averaged over the slots that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eyrie.drafter.model import Drafter
from eyrie.train.batch import Batch
from eyrie.train.unroll import unroll


@dataclass(frozen=True)
class Sums:
    """Sums per step over the slots that count, so that batches can be added before they are divided.

    `loss [K]` (nats, with gradient), `right int64[K]` drafts that equal the target's greedy token, `slots int64[K]`
    slots that count, `trained int64[K]` trained slots, whether or not the target's token is in the draft vocabulary.
    """

    loss: Tensor
    right: Tensor
    slots: Tensor
    trained: Tensor

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.loss + other.loss, self.right + other.right, self.slots + other.slots,
                    self.trained + other.trained)  # fmt: skip

    def mean(self) -> Tensor:
        """Loss per counted slot `[K]`; 0 for a step that has none."""
        return self.loss / self.slots.clamp(min=1)


def step_weights(steps: int, decay: float) -> Tensor:
    """`decay**k`, normalised to sum 1 `float64[K]`: then the learning rate means the same for every `K`."""
    weights = torch.tensor([decay**step for step in range(steps)], dtype=torch.float64)
    return weights / weights.sum()


def ttt_sums(drafter: Drafter, teacher: Tensor, batch: Batch) -> Sums:
    """Loss sums of a packed batch. `teacher [D, H]`: the target head's rows of the draft vocabulary.

    The target's distribution is restricted to the draft vocabulary and renormalised; slots whose greedy token over
    the whole vocabulary lies outside it do not count, and cost no head product.
    """
    with torch.no_grad():
        log_target = F.log_softmax(_wide(F.linear(batch.final, teacher)), dim=-1)  # [m, D]
        target = log_target.exp()
        entropy = -(target * log_target).sum(dim=-1)
        del log_target
        inside = drafter.t2d[batch.argmax]
        # Place of the target's greedy token among the drafted ones; meaningless where it is outside.
        greedy = (drafter.t2d.cumsum(0) - 1)[batch.argmax]
    states, places = [], []
    for step, (slots, outputs) in enumerate(zip(batch.slots, unroll(drafter, batch), strict=True)):
        at = torch.searchsorted(batch.labels, slots + 1 + step)
        keep = inside[at].nonzero().flatten()
        states.append(outputs[keep])
        places.append(at[keep])
    # One head product for all steps: a product of few rows runs at two thirds of the rate.
    at = torch.cat(places)
    logits = _wide(drafter.logits(torch.cat(states)))
    losses = CrossEntropy.apply(logits, target, at) - entropy[at]
    hits = logits.detach().argmax(dim=-1) == greedy[at]
    counted = [len(part) for part in places]
    device = batch.tokens.device
    return Sums(
        torch.stack([part.sum() for part in losses.split(counted)]),
        torch.stack([part.sum() for part in hits.split(counted)]),
        torch.tensor(counted, device=device),
        torch.tensor([len(slots) for slots in batch.slots], device=device),
    )


def _wide(logits: Tensor) -> Tensor:
    """At least fp32: in bf16 the gradient of a good drafter is noise."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class CrossEntropy(torch.autograd.Function):
    """`-sum_v target[at[n], v] * log_softmax(logits[n])[v]` per slot, `[n]`.

    By hand for its memory traffic: one pass gives the loss, one in place the gradient `softmax - target`; autograd
    would keep and walk five `[n, D]` arrays.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, at: Tensor) -> Tensor:
        """`logits [n, D]`, `target [m, D]` rows that sum to 1, `at int64[n]` rows of `target`."""
        partition = torch.logsumexp(logits, dim=-1)
        ctx.save_for_backward(logits, target, at, partition)
        return partition - torch.einsum("nd,nd->n", logits, target[at])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """`softmax(logits) - target`, scaled."""
        logits, target, at, partition = ctx.saved_tensors
        slope = (logits - partition[:, None]).exp_().sub_(target[at]).mul_(grad[:, None])
        return slope, None, None
