"""Read a drafter back as an engine would, but refusing everything an engine would do silently."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eyrie.drafter.config import DrafterConfig
from eyrie.drafter.model import Drafter
from eyrie.drafter.rules import expected_shapes, inspect, read_folder
from eyrie.drafter.target_weights import read_target_tensor
from eyrie.errors import InputError
from eyrie.files import read_json

if TYPE_CHECKING:
    from eyrie.target import TargetReceipt


def load_drafter(folder: str | Path, target: TargetReceipt, dtype: torch.dtype = torch.float32) -> Drafter:
    """The drafter in `folder` with the target's embedding, in `dtype`, in evaluation mode, without gradients.

    Raises InputError naming the folder and every problem that `eyrie.drafter.rules` finds against this target.
    """
    drafter = build(folder, target_text_config(target))
    drafter.embed_tokens.weight.data = read_target_tensor(target.path, "embedding")
    return drafter.to(dtype).eval().requires_grad_(False)


def build(folder: str | Path, target: dict[str, Any]) -> Drafter:
    """The module from the folder's tensors, checked; its embedding is unset memory (it comes from the target)."""
    config, tensors = read_folder(folder)
    problems = inspect(config, tensors, target)
    if problems:
        raise InputError(f"{folder}: {'; '.join(problems)}")
    shape = DrafterConfig.from_json(config, target_layers=target["num_hidden_layers"])
    drafter = Drafter(shape, *vocabulary(shape, tensors))
    weights = {name: tensors[name] for name in expected_shapes(config)}
    left = drafter.load_state_dict(weights, strict=False)
    unset = set(left.missing_keys) - {"embed_tokens.weight", "d2t", "t2d"}
    if unset or left.unexpected_keys:
        raise InputError(f"{folder}: tensors {sorted(unset)} unset, {sorted(left.unexpected_keys)} unused")
    return drafter


def vocabulary(config: DrafterConfig, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """`(d2t, t2d)` of a folder; the identity when the draft vocabulary is the whole one."""
    if config.draft_vocab_size == config.vocab_size:
        return torch.zeros(config.vocab_size, dtype=torch.int64), torch.ones(config.vocab_size, dtype=torch.bool)
    return tensors["d2t"], tensors["t2d"]


def target_text_config(target: TargetReceipt) -> dict[str, Any]:
    """The target's text config as plain JSON (nested `text_config` unwrapped)."""
    from eyrie.target import text_config

    config = text_config(read_json(Path(target.path) / "config.json", hint="run `snakemake target`"))
    return config if isinstance(config, dict) else config.to_dict()
