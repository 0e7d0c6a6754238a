"""Training state on disk: one file per checkpoint, whole or absent, from which a killed run goes on exactly."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from eyrie.files import atomic_path

FORMAT = "eyrie-checkpoint-1"
NAME = re.compile(r"checkpoint-(\d{8})\.safetensors")
KEEP = 2


@dataclass(frozen=True)
class Position:
    """Where a run stands: optimizer steps done (which fixes its place in the data), supervised tokens seen, bytes of
    the metrics file, and the thread count that its sums were made with."""

    step: int
    tokens: int
    metrics_bytes: int
    threads: int


def save(folder: Path, position: Position, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint of the trained parameters, AdamW's moments and the random state; keep the newest two."""
    tensors: dict[str, Tensor] = {"random": torch.get_rng_state()}
    for name, parameter in _trained(model):
        tensors[f"weight/{name}"] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "position": json.dumps(asdict(position))}
    with atomic_path(folder / f"checkpoint-{position.step:08d}.safetensors") as temporary:
        save_file(tensors, temporary, metadata=metadata)
    for path in _found(folder)[KEEP:]:
        path.unlink()


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Position | None:
    """Load the newest whole checkpoint into model and optimizer; None when there is none."""
    for path in _found(folder):
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            continue  # damaged by the disk: the one before it loses some steps, not the run
        if metadata.get("format") != FORMAT:
            continue
        torch.set_rng_state(tensors.pop("random"))
        state: dict[nn.Parameter, dict[str, Tensor]] = {parameter: {} for _, parameter in _trained(model)}
        named = dict(_trained(model))
        for name, tensor in tensors.items():
            key, of = name.split("/", 1)
            if key == "weight":
                with torch.no_grad():
                    named[of].copy_(tensor)
            else:
                state[named[of]][key] = tensor.to(named[of].device)
        optimizer.state.update(state)
        return Position(**json.loads(metadata["position"]))
    return None


def _found(folder: Path) -> list[Path]:
    """Checkpoint files, newest first."""
    return sorted((path for path in folder.glob("*.safetensors") if NAME.fullmatch(path.name)), reverse=True)


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
