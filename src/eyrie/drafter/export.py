"""Write a drafter as the one folder that SGLang and vLLM load, and read it back before it counts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyrie.drafter.cache import DraftCache
from eyrie.drafter.load import build
from eyrie.drafter.model import Drafter
from eyrie.drafter.rules import WEIGHTS
from eyrie.errors import EyrieError
from eyrie.files import atomic_path, write_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.bfloat16}


def export_dtype(target: dict[str, Any]) -> torch.dtype:
    """fp32 for an fp32 target, bf16 for every other: what the engine computes the target in."""
    return DTYPES.get(str(target.get("dtype") or target.get("torch_dtype")).removeprefix("torch."), torch.bfloat16)


def exported_tensors(drafter: Drafter, dtype: torch.dtype) -> dict[str, Tensor]:
    """The file's tensors: the embedding stays out (engines share the target's), and with a whole draft vocabulary
    `d2t` and `t2d` do too."""
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in drafter.state_dict().items()
        if name != "embed_tokens.weight"
    }
    if drafter.config.draft_vocab_size == drafter.config.vocab_size:
        del tensors["d2t"], tensors["t2d"]
    return tensors


def export(drafter: Drafter, folder: str | Path, target: dict[str, Any]) -> None:
    """Write `config.json` and `model.safetensors` into `folder`; other files there stay.

    `target`: the target's text config. The files are first written beside it, loaded by the rules of
    `eyrie.drafter.load` and run: logits that are not those of `drafter`, rounded to the file's dtype, are a defect.
    The same weights give the same bytes.
    """
    dtype = export_dtype(target)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        draft = Path(name)
        write_json(draft / "config.json", drafter.config.to_json(str(dtype).removeprefix("torch.")))
        save_file(exported_tensors(drafter, dtype), draft / WEIGHTS, metadata={"format": "pt"})
        _compare(drafter, build(draft, target), dtype)
        install(draft, folder)


def install(source: str | Path, folder: str | Path) -> None:
    """Copy an exported drafter's two files into `folder`, the weights first: a config.json never lacks its weights."""
    for name in (WEIGHTS, "config.json"):
        with atomic_path(Path(folder) / name) as temporary:
            shutil.copyfile(Path(source) / name, temporary)


@torch.no_grad()
def _compare(drafter: Drafter, read_back: Drafter, dtype: torch.dtype) -> None:
    """Both drafters on the same random states, two chain steps. Raises EyrieError when their logits differ."""
    generator = torch.Generator().manual_seed(0)
    config = drafter.config
    aux = torch.randn(1, 5, 3 * config.target_hidden_size, generator=generator).to(dtype)
    embeds = torch.randn(2, 1, 5, config.hidden_size, generator=generator).to(dtype)
    results = []
    for module in (drafter, read_back):
        device = module.fc.weight.device
        own = {name: p.data for name, p in module.named_parameters()}
        try:
            for name, parameter in module.named_parameters():
                if name != "embed_tokens.weight":
                    parameter.data = own[name].to(dtype)
            states, cache, found = module.fuse(aux.to(device)), DraftCache(), []
            for step in range(2):
                positions = torch.arange(5, device=device)[None] + step
                states = module.layer(embeds[step].to(device), states, positions, cache)
                found.append(module.logits(states).cpu())
            results.append(torch.stack(found))
        finally:
            for name, parameter in module.named_parameters():
                parameter.data = own[name]
    if not torch.equal(*results):
        worst = float((results[0].float() - results[1].float()).abs().max())
        raise EyrieError(f"the exported drafter's logits differ from the trained one's by up to {worst:.3g}")
