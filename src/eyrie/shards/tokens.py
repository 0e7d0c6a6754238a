"""Token shards: conversations as token ids with the spans that the target generated, in Parquet.

A shard holds the rows of a fixed range of prompt indices, so a larger dataset adds shards and leaves finished ones
as they are, byte for byte. Manifests name every shard with its SHA-256; readers check it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eyrie.errors import InputError
from eyrie.files import atomic_path, canonical_json, read_json, write_json
from eyrie.shards.slots import trained_count

FORMAT = "eyrie-tokens-1"
MANIFEST = "manifest.json"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("span_start", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("span_end", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)
# Everything that could change bytes is said here rather than left to a default.
WRITER: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 6,
    "use_dictionary": False,
    "column_encoding": None,
    "write_statistics": False,
    "data_page_size": 1 << 20,
    "data_page_version": "1.0",
    "version": "2.6",
    "store_schema": True,
}
ROW_GROUP = 4096  # rows


@dataclass(frozen=True)
class TokenRow:
    """One training row: `input_ids` int32[T] and half-open generated `spans`, ascending, each after a prompt token."""

    id: str
    index: int
    turn: int
    input_ids: NDArray[np.int32]
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class TokenShard:
    """A shard in flat columns, for N rows of T_r tokens and S_r spans.

    Token r of row i is `input_ids[offsets[i] + r]`; spans of row i are `span_offsets[i]:span_offsets[i + 1]`.
    """

    dataset: str
    target: str
    ids: list[str]
    index: NDArray[np.int32]  # [N]
    turn: NDArray[np.int32]  # [N]
    offsets: NDArray[np.int64]  # [N + 1]
    input_ids: NDArray[np.int32]  # [sum T]
    span_offsets: NDArray[np.int64]  # [N + 1]
    span_start: NDArray[np.int32]  # [sum S]
    span_end: NDArray[np.int32]  # [sum S]
    sha256: str  # of the file

    def __len__(self) -> int:
        return len(self.ids)

    def spans(self, i: int) -> list[tuple[int, int]]:
        """Half-open spans of row i."""
        part = slice(self.span_offsets[i], self.span_offsets[i + 1])
        return list(zip(self.span_start[part].tolist(), self.span_end[part].tolist(), strict=True))

    def row(self, i: int) -> TokenRow:
        """Row i; its ids are a view."""
        ids = self.input_ids[self.offsets[i] : self.offsets[i + 1]]
        return TokenRow(self.ids[i], int(self.index[i]), int(self.turn[i]), ids, self.spans(i))

    def trained(self) -> NDArray[np.bool_]:
        """bool[sum T]: the tokens that a trained slot guesses at step 0, `x[s + 1 .. end - 1]` of every span."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.span_offsets))
        first = self.offsets[rows] + np.maximum(self.span_start, 1) + 1
        last = np.maximum(self.offsets[rows] + self.span_end, first)
        edges = np.bincount(first, minlength=len(self.input_ids) + 1).astype(np.int64)
        edges -= np.bincount(last, minlength=len(self.input_ids) + 1)[: len(edges)]
        return np.cumsum(edges)[: len(self.input_ids)] > 0


@dataclass(frozen=True)
class ShardEntry:
    """What a manifest says of one shard; `tokens` and `trained_tokens` count token positions."""

    name: str
    rows: int
    tokens: int
    trained_tokens: int
    sha256: str


@dataclass(frozen=True)
class TokensManifest:
    """A dataset's token shards. `dropped` counts conversations or turns left out, `counted` what was kept but odd.

    `special` are the ids of the tokenizer's control tokens, among them all that end a turn; they stand here so that
    the draft vocabulary can be chosen without loading a tokenizer.
    """

    folder: Path
    dataset: str
    target: str
    slice: dict[str, Any]
    shards: tuple[ShardEntry, ...]
    dropped: dict[str, int]
    counted: dict[str, int]
    special: tuple[int, ...]

    def path(self, entry: ShardEntry) -> Path:
        """File of a shard."""
        return self.folder / f"{entry.name}.parquet"

    def read(self, entry: ShardEntry) -> TokenShard:
        """The shard, checked against the manifest's hash."""
        return read_shard(self.path(entry), sha256=entry.sha256)


def remedy(path: Path) -> str:
    """What to run when a file of a token folder is missing or wrong."""
    folder = path if path.suffix == "" else path.parent
    return f"delete {folder} and run `snakemake {folder}/{MANIFEST}`"


def check_row(row: TokenRow, where: str) -> None:
    """Raises InputError naming the row when its spans are no ascending ranges inside it, each after a prompt token."""
    position = 1
    for start, end in row.spans:
        if not position <= start < end <= len(row.input_ids):
            raise InputError(f"{where}: row {row.id} turn {row.turn}: span [{start}, {end}) is not a range after"
                             f" position {position} of {len(row.input_ids)} tokens")  # fmt: skip
        position = end
    if not row.spans:
        raise InputError(f"{where}: row {row.id} turn {row.turn}: no span")


def write_shard(path: str | Path, rows: Iterable[TokenRow], *, dataset: str = "", target: str = "") -> ShardEntry:
    """Write rows, in the order given, as one shard; the same rows give the same bytes. An empty shard is valid.

    `target` is the fingerprint of the target whose tokenizer made the ids. Raises InputError for impossible spans.
    """
    path = Path(path)
    rows = list(rows)
    for row in rows:
        check_row(row, str(path))
    columns = [
        pa.array([row.id for row in rows], pa.string()),
        pa.array([row.index for row in rows], pa.int32()),
        pa.array([row.turn for row in rows], pa.int32()),
        _lists([row.input_ids for row in rows], "input_ids"),
        _lists([[start for start, _ in row.spans] for row in rows], "span_start"),
        _lists([[end for _, end in row.spans] for row in rows], "span_end"),
    ]
    header = canonical_json({"format": FORMAT, "dataset": dataset, "target": target, "shard": path.stem})
    table = pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata({"eyrie": header}))
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, row_group_size=ROW_GROUP, **WRITER)
        digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    tokens = sum(len(row.input_ids) for row in rows)
    return ShardEntry(path.stem, len(rows), tokens, sum(trained_count(row.spans) for row in rows), digest)


def _lists(values: Sequence[Any], name: str) -> pa.Array:
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InputError(f"{name}: {offsets[-1]} tokens do not fit one shard; lower tokenize.rows_per_shard")
    flat = np.concatenate([np.asarray(value, dtype=np.int32) for value in values] or [np.zeros(0, np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(flat), type=SCHEMA.field(name).type)


def read_shard(path: str | Path, *, sha256: str | None = None) -> TokenShard:
    """Read a shard. Raises InputError with the file's name and what to run when it is missing, changed or foreign."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such token shard; {remedy(path)}") from None
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        raise InputError(f"{path}: its content is not what the manifest beside it says; {remedy(path)}")
    try:
        table = pq.read_table(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: not a Parquet file ({error}); {remedy(path)}") from None
    header = json.loads((table.schema.metadata or {}).get(b"eyrie", b"{}"))
    if header.get("format") != FORMAT or not table.schema.equals(SCHEMA):
        raise InputError(f"{path}: not a token shard of format {FORMAT}; {remedy(path)}")
    offsets, input_ids = _flat(table, "input_ids")
    span_offsets, span_start = _flat(table, "span_start")
    end_offsets, span_end = _flat(table, "span_end")
    if not np.array_equal(span_offsets, end_offsets):
        raise InputError(f"{path}: span starts and ends do not pair up; {remedy(path)}")
    return TokenShard(
        header["dataset"], header["target"], table["id"].to_pylist(), table["index"].to_numpy(),
        table["turn"].to_numpy(), offsets, input_ids, span_offsets, span_start, span_end, digest,
    )  # fmt: skip


def _flat(table: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    column = table[name].combine_chunks()
    return column.offsets.to_numpy().astype(np.int64), column.values.to_numpy()


def write_manifest(
    folder: str | Path,
    *,
    dataset: str,
    target: str,
    slice: dict[str, Any],
    shards: Iterable[ShardEntry],
    dropped: dict[str, int],
    counted: dict[str, int],
    special: Iterable[int] = (),
) -> None:
    """Write the manifest of a folder of shards; it is the last file written."""
    value = {"format": FORMAT, "dataset": dataset, "target": target, "slice": slice,
             "shards": [asdict(entry) for entry in shards], "dropped": dropped, "counted": counted,
             "special_token_ids": sorted(special)}  # fmt: skip
    write_json(Path(folder) / MANIFEST, value)


def read_manifest(folder: str | Path) -> TokensManifest:
    """The manifest of a token folder; shards are checked against it when read through `TokensManifest.read`.

    Raises InputError when it is missing, foreign, or a shard that it lists is missing.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    value = read_json(path, hint=remedy(folder))
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InputError(f"{path}: not a manifest of format {FORMAT}; {remedy(folder)}")
    shards = tuple(ShardEntry(**entry) for entry in value["shards"])
    special = tuple(value.get("special_token_ids", ()))
    manifest = TokensManifest(folder, value["dataset"], value["target"], value["slice"], shards, value["dropped"],
                              value["counted"], special)  # fmt: skip
    for entry in shards:
        if not manifest.path(entry).is_file():
            raise InputError(f"{manifest.path(entry)}: no such token shard; {remedy(folder)}")
    return manifest
