"""target.json: what the target is, where its files lie, and the fingerprint that everything below is bound to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import fingerprint, read_json, sha256_file, write_json

FORMAT = "eyrie-target-1"
REBUILD = "run `snakemake target`"


@dataclass(frozen=True)
class TargetReceipt:
    """A prepared target. `path` is its Hugging Face folder, `files` its names with their SHA-256."""

    name: str
    path: str
    fingerprint: str
    files: dict[str, str]
    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int

    @property
    def folder(self) -> Path:
        return Path(self.path)

    def write(self, path: str | Path) -> None:
        """Write target.json."""
        write_json(path, {"format": FORMAT, **asdict(self)})


def load_receipt(path: str | Path) -> TargetReceipt:
    """Read target.json. Raises InputError when it is no receipt or the model's files are gone."""
    value = read_json(path, hint=REBUILD)
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise InputError(f"{path}: not a target receipt ({FORMAT}); {REBUILD}")
    try:
        receipt = TargetReceipt(**value)
    except TypeError:
        raise InputError(f"{path}: a target receipt with other fields than this version writes; {REBUILD}") from None
    for name in receipt.files:
        if not (receipt.folder / name).is_file():
            raise InputError(f"{path}: the target's file {receipt.folder / name} is gone; {REBUILD}")
    return receipt


def make_receipt(name: str, folder: Path, slice_: Mapping[str, Any]) -> TargetReceipt:
    """Describe the model in `folder`; its fingerprint covers the slice and every file's content.

    Raises InputError when the folder holds no causal language model or lacks a tokenizer.
    """
    config = read_json(folder / "config.json", hint="the target's folder must be in Hugging Face layout")
    text = text_config(config)
    try:
        sizes = {
            "layers": int(text["num_hidden_layers"]),
            "hidden_size": int(text["hidden_size"]),
            "vocab_size": int(text["vocab_size"]),
            "max_position_embeddings": int(text["max_position_embeddings"]),
        }
        architecture = config["architectures"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'}: no language model's configuration ({error} is missing)") from None
    files = hash_files(folder)
    if not any(name.endswith(".safetensors") for name in files):
        raise InputError(f"{folder}: no *.safetensors weights; convert the model to safetensors")
    if not any(name.startswith(("tokenizer", "tiktoken")) for name in files):
        raise InputError(f"{folder}: no tokenizer files")
    return TargetReceipt(
        name=name,
        path=str(folder.resolve()),
        fingerprint=fingerprint(slice_, files),
        files=files,
        architecture=architecture,
        **sizes,
    )


def hash_files(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of every visible file of a model folder, sorted.

    A hub snapshot links to blobs that are named by their SHA-256 when they are large; the name is taken as the hash
    then, which spares reading hundreds of gigabytes.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or any(part.startswith(".") for part in name.split("/")):
            continue
        blob = path.resolve().name
        is_hash = path.is_symlink() and len(blob) == 64 and all(c in "0123456789abcdef" for c in blob)
        found[name] = blob if is_hash else sha256_file(path)
    return found


def text_config(config: Any) -> Any:
    """The language model's own configuration: nested in multimodal models (Kimi-K2.5), else `config` itself.

    Takes the dict of config.json or a transformers configuration and returns the same kind.
    """
    if isinstance(config, Mapping):
        return config.get("text_config") or config
    return config.get_text_config()


def read_config(receipt: TargetReceipt) -> dict[str, Any]:
    """The target's config.json as a dict."""
    return json.loads((receipt.folder / "config.json").read_bytes())
