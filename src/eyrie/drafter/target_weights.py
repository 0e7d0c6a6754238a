"""The few tensors of the target that a drafter needs, read from its safetensors files without loading the model."""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from eyrie.errors import InputError
from eyrie.files import read_json

# Wrapped targets (`language_model.`) included, multi-token-prediction layers (`model.layers.61.embed_tokens`) not.
PATTERNS = {
    "embedding": re.compile(r"(?:model\.|language_model\.)*embed_tokens\.weight"),
    "head": re.compile(r"(?:model\.|language_model\.)*lm_head\.weight"),
}


def read_target_tensor(folder: str | Path, kind: str) -> Tensor:
    """`embedding [V, H]` or `head [V, H]` (the embedding when the target ties them).

    Raises InputError when the folder holds no such tensor.
    """
    folder = Path(folder)
    names = _names(folder)
    found = [name for name in names if PATTERNS[kind].fullmatch(name)]
    if not found and kind == "head" and read_json(folder / "config.json").get("tie_word_embeddings", False):
        return read_target_tensor(folder, "embedding")
    if len(found) != 1:
        what = "no" if not found else "more than one"
        raise InputError(f"{folder}: {what} tensor named like {PATTERNS[kind].pattern}; rerun `snakemake target`")
    with safe_open(folder / names[found[0]], framework="pt") as file:
        return file.get_tensor(found[0])


def _names(folder: Path) -> dict[str, str]:
    """Tensor name -> file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return read_json(index)["weight_map"]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise InputError(f"{folder}: neither model.safetensors nor its index is here; run `snakemake target`")
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single.name)
