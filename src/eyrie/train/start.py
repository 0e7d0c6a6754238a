"""The drafter before its first step, and the check that the captured states are the ones its teacher expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eyrie.drafter.config import DrafterConfig
from eyrie.drafter.model import Drafter
from eyrie.drafter.rules import inspect_config
from eyrie.drafter.target_weights import read_target_tensor
from eyrie.errors import InputError
from eyrie.shards.aux import AuxLayers
from eyrie.target import TargetReceipt
from eyrie.train.copying import Sample, add_copying_heads


@dataclass(frozen=True)
class Start:
    """A drafter in fp32, the target's `head [V, H]`, and `teacher [D, H]`: its rows of the draft vocabulary."""

    drafter: Drafter
    head: Tensor
    teacher: Tensor


def start(
    target: TargetReceipt,
    text_config: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    context_length: int,
    aux: AuxLayers,
    d2t: Tensor,
    t2d: Tensor,
    seed: int,
    sample: Callable[[], Sample],
) -> Start:
    """Build from the target's own weights: its embedding (frozen) and its head's rows; `fc` passes the high aux state.

    That state is nearly what the head reads, and the layer's residual carries it there, so the drafter starts near the
    target's own next token, with a final norm of ones, which is better there than the target's own.
    `settings` is the slice's `drafter` part. With `copying_heads` some heads begin as heads that copy, fitted to
    `sample()`. The same seed gives the same weights. With `freeze_head` the head stays the target's: its rows are as
    good as trained ones and a quarter of the work is saved.
    """
    config = DrafterConfig.from_target(text_config, settings, context_length=context_length, aux=aux)
    if len(d2t) != config.draft_vocab_size or len(t2d) != config.vocab_size:
        raise InputError(
            f"the corpus's draft vocabulary ({len(d2t)} of {len(t2d)} tokens) is not drafter.draft_vocab_size="
            f"{config.draft_vocab_size} of the target's {config.vocab_size}; rebuild the corpus"
        )
    problems = inspect_config(config.to_json("float32"), text_config)
    if problems:
        raise InputError(f"the drafter could not be served: {'; '.join(problems)}")
    torch.manual_seed(seed)
    drafter = Drafter(config, d2t, t2d)
    head = read_target_tensor(target.path, "head").float()
    teacher = head[t2d]
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(read_target_tensor(target.path, "embedding"))
        drafter.lm_head.weight.copy_(teacher)
        drafter.fc.weight[:, -config.target_hidden_size :] += torch.eye(config.hidden_size, config.target_hidden_size)
    if settings["copying_heads"]:
        add_copying_heads(drafter, head, sample(), torch.Generator().manual_seed(seed))
    drafter.lm_head.weight.requires_grad_(not settings["freeze_head"])
    return Start(drafter, head, teacher)


def check_states(head: Tensor, final: Tensor, argmax: Tensor, logsumexp: Tensor, where: str) -> None:
    """The target's head on stored final states `[T, H]` must give the stored `argmax` and `logsumexp` of `[T]`.

    It does not when the states were taken before the final norm or belong to another model: training would run
    and acceptance would stay low. Raises InputError naming `where`.
    """
    logits = F.linear(final.float(), head)
    agree = float((logits.argmax(dim=-1) == argmax.long()).double().mean())
    apart = float((logits.logsumexp(dim=-1) - logsumexp).abs().median())
    if agree < 0.8 or apart > 0.5:
        raise InputError(
            f"{where}: the target's head on the stored final states gives the stored tokens for only {agree:.0%} of "
            f"them (log-partition off by {apart:.2g}): states before the final norm, or of another model; recapture"
        )
