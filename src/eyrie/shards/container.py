"""The frame of a hidden-state shard: its header, its index, and where everything lies in the safetensors file.

A safetensors file begins with the length of a JSON table of tensors. The table must state where the largest tensor
ends, which is known last; so its place is reserved with room to spare and padded with spaces, and a shard is written
in one pass with one row in memory.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eyrie.files import canonical_json
from eyrie.shards.aux import AuxLayers
from eyrie.shards.planes import CODEC

FORMAT = "eyrie-hidden-1"
STATES = ("aux_low", "aux_mid", "aux_high", "final")
ITEMSIZE = {"bfloat16": 2, "float32": 4}
ALIGN = 64  # bytes
NAMES = {"<i8": "I64", "<u4": "U32", "<i4": "I32", "<f4": "F32", "|u1": "U8"}


@dataclass(frozen=True)
class HiddenHeader:
    """What a shard holds and what it was made from: equal headers mean interchangeable shards.

    `rows` and `tokens` are counts, `hidden_size` is H of the target, `dtype` the stored type (bfloat16 or float32),
    `norm` says that the final state is the one after the target's last norm. `source_sha256` is the token shard's
    hash, `target` the target's fingerprint, `settings` what else decided the values (engine, computing type, batches).
    """

    rows: int
    tokens: int
    hidden_size: int
    aux: AuxLayers
    dtype: str
    source_sha256: str
    target: str
    settings: dict[str, Any] = field(default_factory=dict)
    norm: str = "post"

    def to_json(self) -> dict[str, Any]:
        """The JSON in the file, readable without this package: layer ids in all three spellings, codec, origin."""
        aux = {"hf": self.aux.hf, "sglang": self.aux.sglang, "vllm": self.aux.vllm, "target_layers": self.aux.layers}
        return {
            "format": FORMAT,
            "rows": self.rows,
            "tokens": self.tokens,
            "hidden_size": self.hidden_size,
            "states": list(STATES),
            "aux_layers": {key: list(ids) if isinstance(ids, tuple) else ids for key, ids in aux.items()},
            "norm": self.norm,
            "dtype": self.dtype,
            "source_sha256": self.source_sha256,
            "target": self.target,
            "settings": self.settings,
            "codec": {"planes": "bytes", "high": CODEC, "low": "raw", "group": "row", "checksum": "crc32"},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> HiddenHeader:
        """Undo `to_json`. Raises ValueError, KeyError or TypeError on anything that this version did not write."""
        aux = AuxLayers.from_hf(value["aux_layers"]["hf"], value["aux_layers"]["target_layers"])
        same = ("rows", "tokens", "hidden_size", "dtype", "source_sha256", "target", "settings", "norm")
        header = cls(aux=aux, **{key: value[key] for key in same})
        if header.to_json() != value or header.dtype not in ITEMSIZE or min(header.rows, header.tokens) < 0:
            raise ValueError(f"another format than {FORMAT} of this version")
        return header

    @property
    def raw_bytes(self) -> int:
        """Bytes of the same content without compression: 4H values, argmax and logsumexp per token."""
        return self.tokens * (len(STATES) * self.hidden_size * ITEMSIZE[self.dtype] + 8)


@dataclass(frozen=True)
class Index:
    """Where each row's tokens and bytes are. Row r owns tokens `row_offsets[r]:row_offsets[r + 1]`."""

    row_offsets: np.ndarray  # int64 [R + 1]
    group_starts: np.ndarray  # int64 [R], bytes from the start of `states`
    frames: np.ndarray  # uint32 [R, 4], bytes of each state's zstd frame
    checksums: np.ndarray  # uint32 [R]

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Index:
        """The index of rows of `lengths` tokens, none written yet (`group_starts` is -1)."""
        rows = len(lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype("<i8")
        return cls(offsets, np.full(rows, -1, "<i8"), np.zeros((rows, len(STATES)), "<u4"), np.zeros(rows, "<u4"))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.row_offsets, self.group_starts, self.frames, self.checksums)


class Layout:
    """Names, types and places of the tensors of a shard with this header."""

    def __init__(self, header: HiddenHeader) -> None:
        rows, tokens = header.rows, header.tokens
        self.header = header
        self.fixed: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "row_offsets": (np.dtype("<i8"), (rows + 1,)),
            "group_starts": (np.dtype("<i8"), (rows,)),
            "frames": (np.dtype("<u4"), (rows, len(STATES))),
            "checksums": (np.dtype("<u4"), (rows,)),
            "argmax": (np.dtype("<i4"), (tokens,)),
            "logsumexp": (np.dtype("<f4"), (tokens,)),
        }
        longest = self._json("0" * 64, 10**18)
        self.data_start = -(-(8 + len(longest)) // ALIGN) * ALIGN
        sizes = [dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.fixed.values()]
        self.states_start = self.data_start + sum(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)]) + self.data_start
        self.places = dict(zip(self.fixed, starts.tolist(), strict=False))

    def _json(self, digest: str, states: int) -> bytes:
        table: dict[str, Any] = {"__metadata__": {"digest": digest, "eyrie": canonical_json(self.header.to_json())}}
        position = 0
        for name, (dtype, shape) in [*self.fixed.items(), ("states", (np.dtype("u1"), (states,)))]:
            end = position + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            table[name] = {"dtype": NAMES[dtype.str], "shape": list(shape), "data_offsets": [position, end]}
            position = end
        return canonical_json(table).encode()

    def render(self, index: Index, states: int) -> bytes:
        """The file's first `data_start` bytes when `states` holds that many bytes."""
        digest = hashlib.sha256(canonical_json(self.header.to_json()).encode())
        for array in index.arrays():
            digest.update(array.tobytes())
        text = self._json(digest.hexdigest(), states)
        return struct.pack("<Q", self.data_start - 8) + text.ljust(self.data_start - 8)

    def array(self, name: str, buffer: Any) -> np.ndarray:
        """A view of one of the fixed tensors in the whole file's `buffer`."""
        dtype, shape = self.fixed[name]
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(buffer, dtype, count=count, offset=self.places[name]).reshape(shape)


def read_header(buffer: Any) -> HiddenHeader:
    """The header of a file's bytes. Raises ValueError, KeyError or TypeError when they are no shard's."""
    size = int.from_bytes(buffer[:8], "little")
    if not 0 < size <= min(len(buffer), 100_000_000) - 8:
        raise ValueError("it is no safetensors file, or cut off inside its header")
    table = json.loads(bytes(buffer[8 : 8 + size]))
    return HiddenHeader.from_json(json.loads(table["__metadata__"]["eyrie"]))
