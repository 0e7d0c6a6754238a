"""The corpus files: which token rows train, which are held out, and the draft vocabulary.

`rows.parquet` names rows of token shards, `vocab.safetensors` holds `t2d`, `d2t` and the counts behind them,
`manifest.json` binds both by hash to each other and to the token manifests that they were made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eyrie.errors import InputError
from eyrie.files import atomic_path, canonical_json, read_json, sha256_file, write_json
from eyrie.shards.tokens import WRITER

FORMAT = "eyrie-corpus-1"
ROWS, VOCAB, MANIFEST = "rows.parquet", "vocab.safetensors", "manifest.json"
SCHEMA = pa.schema(
    [
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("trained", pa.int32(), nullable=False),
    ]
)
Split = Literal["train", "holdout"]


@dataclass(frozen=True)
class CorpusRow:
    """One row: row `row` of token shard `shard` of `dataset`; `trained` counts its tokens that a draft may guess."""

    dataset: str
    shard: str
    row: int
    id: str
    split: Split
    tokens: int
    trained: int


@dataclass(frozen=True)
class Vocabulary:
    """The draft vocabulary: the D of V target tokens that the drafter can say.

    `t2d` bool[V] marks them. `d2t` int64[D] holds offsets: draft token d is target token `d + d2t[d]`, ascending, so
    `nonzero(t2d) == arange(D) + d2t` (what SGLang and vLLM read). `counts` int64[V] is how often
    each token is trained in the train split.
    """

    t2d: NDArray[np.bool_]
    d2t: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def target_ids(self) -> NDArray[np.int64]:
        """int64[D]: the target id of each draft id."""
        return np.arange(len(self.d2t)) + self.d2t


@dataclass(frozen=True)
class Corpus:
    """A checked corpus folder."""

    folder: Path
    rows: tuple[CorpusRow, ...]  # dataset by dataset, in shard order
    vocabulary: Vocabulary
    manifest: dict[str, Any]

    def split(self, name: Split) -> Iterator[CorpusRow]:
        """The rows of one split, dataset by dataset, in shard order."""
        return (row for row in self.rows if row.split == name)

    @property
    def target(self) -> str:
        """Fingerprint of the target that the tokens are for."""
        return self.manifest["target"]

    @property
    def t2d(self) -> NDArray[np.bool_]:
        """bool[V], see Vocabulary."""
        return self.vocabulary.t2d

    @property
    def d2t(self) -> NDArray[np.int64]:
        """int64[D] offsets, see Vocabulary."""
        return self.vocabulary.d2t

    def check_tokens(self, dataset: str, folder: Path) -> None:
        """Raises InputError when `folder` is not the token folder of `dataset` that this corpus was made from."""
        expected = self.manifest["tokens_manifests"].get(dataset)
        if expected is None:
            raise InputError(f"{self.folder}: knows no dataset {dataset}; {remedy(self.folder)}")
        if sha256_file(folder / "manifest.json") != expected:
            raise InputError(f"{folder}: is not what {self.folder} was made from; {remedy(self.folder)}")


def remedy(folder: Path) -> str:
    """What to run when the corpus is missing or wrong."""
    return f"run `snakemake --forcerun corpus -- {folder / MANIFEST}`"


def write_rows(path: Path, rows: list[CorpusRow], target: str) -> None:
    """Write the table of rows, deterministically."""
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in SCHEMA]
    header = canonical_json({"format": FORMAT, "target": target})
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata({"eyrie": header})), temporary,
                       **WRITER)  # fmt: skip


def write_vocabulary(path: Path, vocabulary: Vocabulary, target: str) -> None:
    """Write the vocabulary. One metadata key only: safetensors does not keep the order of several."""
    from safetensors.numpy import save_file

    tensors = {"t2d": vocabulary.t2d, "d2t": vocabulary.d2t, "counts": vocabulary.counts}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"eyrie": canonical_json({"format": FORMAT, "target": target})})


def write_manifest(folder: Path, value: dict[str, Any]) -> None:
    """Write the manifest with the hashes of the other two files; it is the last file written."""
    hashes = {name: sha256_file(folder / name) for name in (ROWS, VOCAB)}
    write_json(folder / MANIFEST, {"format": FORMAT, "sha256": hashes, **value})


def read_corpus(folder: str | Path) -> Corpus:
    """Read and check a corpus folder. Raises InputError with the file's name and what to run."""
    from safetensors.numpy import load_file

    folder = Path(folder)
    manifest = read_json(folder / MANIFEST, hint=remedy(folder))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{folder / MANIFEST}: not a corpus manifest of format {FORMAT}; {remedy(folder)}")
    for name, expected in manifest["sha256"].items():
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: no such file; {remedy(folder)}")
        if sha256_file(folder / name) != expected:
            raise InputError(f"{folder / name}: its content is not what {MANIFEST} says; {remedy(folder)}")
    table = pq.read_table(folder / ROWS)
    header = json.loads((table.schema.metadata or {}).get(b"eyrie", b"{}"))
    if header.get("format") != FORMAT or not table.schema.equals(SCHEMA):
        raise InputError(f"{folder / ROWS}: not a table of format {FORMAT}; {remedy(folder)}")
    rows = tuple(CorpusRow(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True))
    vocabulary = Vocabulary(**load_file(folder / VOCAB))
    if not np.array_equal(np.nonzero(vocabulary.t2d)[0], vocabulary.target_ids):
        raise InputError(f"{folder / VOCAB}: t2d and d2t name different tokens; {remedy(folder)}")
    return Corpus(folder, rows, vocabulary, manifest)
