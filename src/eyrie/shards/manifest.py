"""The manifest of a dataset's hidden-state shards: which token shard each belongs to, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from eyrie.errors import InputError
from eyrie.files import read_json, write_json
from eyrie.shards.aux import AuxLayers
from eyrie.shards.container import FORMAT
from eyrie.shards.hidden import HiddenShard

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class HiddenEntry:
    """One shard; `bytes` is its file's size, `raw_bytes` what the same content takes without compression."""

    name: str
    sha256: str
    source_sha256: str  # of the token shard
    rows: int
    tokens: int
    bytes: int
    raw_bytes: int


@dataclass(frozen=True)
class HiddenManifest:
    """A dataset's hidden-state shards, in the order of its token shards."""

    folder: Path
    dataset: str
    target: str
    aux: AuxLayers
    shards: tuple[HiddenEntry, ...]

    def path(self, entry: HiddenEntry) -> Path:
        """File of a shard."""
        return self.folder / f"{entry.name}.safetensors"

    def open(self, entry: HiddenEntry, *, source_sha256: str | None = None) -> HiddenShard:
        """Open a shard, checked against this manifest and, when given, against the hash of its token shard.

        Rows are checked as they are read, so opening reads little. Raises InputError naming the file.
        """
        expected = source_sha256 or entry.source_sha256
        return HiddenShard.open(
            self.path(entry), expect_source_sha=expected, expect_target=self.target, expect_aux=self.aux
        )


def remedy(folder: Path) -> str:
    return f"delete {folder} and run `snakemake {folder}/{MANIFEST}` (states in the store are not captured again)"


def write_manifest(
    folder: str | Path, *, dataset: str, target: str, aux: AuxLayers, shards: Iterable[HiddenEntry]
) -> None:
    """Write the manifest, the last file of a capture job; `aux_layers` in it are HF `hidden_states` indices."""
    value = {"format": FORMAT, "dataset": dataset, "target": target, "aux_layers": list(aux.hf),
             "aux_layers_sglang": list(aux.sglang), "target_layers": aux.layers,
             "shards": [asdict(entry) for entry in shards]}  # fmt: skip
    write_json(Path(folder) / MANIFEST, value)


def read_manifest(folder: str | Path) -> HiddenManifest:
    """The manifest of a `hidden/DATASET` folder. Raises InputError when it or a shard that it lists is missing."""
    folder = Path(folder)
    path = folder / MANIFEST
    value = read_json(path, hint=remedy(folder))
    try:
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}")
        aux = AuxLayers.from_hf(value["aux_layers"], value["target_layers"])
        shards = tuple(HiddenEntry(**entry) for entry in value["shards"])
        manifest = HiddenManifest(folder, value["dataset"], value["target"], aux, shards)
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(f"{path}: not a manifest of format {FORMAT} ({error}); {remedy(folder)}") from None
    for entry in manifest.shards:
        if not manifest.path(entry).is_file():
            raise InputError(f"{manifest.path(entry)}: no such hidden-state shard; {remedy(folder)}")
    return manifest
