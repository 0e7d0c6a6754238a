"""Hidden-state shards: what the target computed for every token of one token shard.

One plain safetensors file per token shard, of R rows and N tokens:

| tensor | type, shape | content |
|---|---|---|
| `row_offsets` | int64 [R+1] | row r owns tokens `row_offsets[r]:row_offsets[r+1]` |
| `group_starts` | int64 [R] | where in `states` its group begins |
| `frames` | uint32 [R, 4] | bytes of the zstd frame of each state's high plane |
| `checksums` | uint32 [R] | CRC-32 of the row's group, argmax and logsumexp |
| `argmax`, `logsumexp` | int32 [N], float32 [N] | of the target's head over its whole vocabulary, computed in float32 |
| `states` | uint8 [B] | one group per row: four zstd frames, then four raw low planes (`eyrie.shards.planes`) |

The four states are aux low, mid, high and the final state, each `[T, H]`. A row is a group, so any row is read alone;
groups lie in the order in which they were captured, and the index undoes it. No byte can change unnoticed: the JSON
table is rendered again from what it says and compared, its digest covers the index, and a checksum per row the rest.
The same rows written in the same order give the same bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import torch

from eyrie.errors import InputError
from eyrie.files import atomic_write
from eyrie.shards import container, planes
from eyrie.shards.aux import AuxLayers
from eyrie.shards.container import FORMAT as FORMAT
from eyrie.shards.container import HiddenHeader as HiddenHeader

TORCH = {"bfloat16": torch.bfloat16, "float32": torch.float32}
EXPONENT = {"bfloat16": 0x7F80, "float32": 0x7F800000}  # all of these bits set: NaN or infinity


@dataclass(frozen=True)
class HiddenRow:
    """The states of one token row of T tokens.

    `aux` [T, 3H] (low, mid, high beside each other) and `final` [T, H] (after the target's last norm) in the shard's
    dtype; `argmax` int32 [T] and `logsumexp` float32 [T] of the head at each position, i.e. of the *next* token.
    """

    aux: torch.Tensor
    final: torch.Tensor
    argmax: torch.Tensor
    logsumexp: torch.Tensor

    def __len__(self) -> int:
        return len(self.argmax)


class HiddenWriter:
    """Writes rows, in any order, into an open binary file; `close` puts index and header in front of them.

    `lengths` are the rows' token counts, in shard order. Memory: one row, and 8 bytes a token.
    """

    def __init__(self, file: BinaryIO, header: HiddenHeader, lengths: Sequence[int]) -> None:
        if (len(lengths), sum(lengths)) != (header.rows, header.tokens):
            raise ValueError(f"{len(lengths)} rows of {sum(lengths)} tokens under {header}")
        self.file, self.header = file, header
        self.layout = container.Layout(header)
        self.index = container.Index.of_lengths(lengths)
        self.argmax = np.zeros(header.tokens, "<i4")
        self.logsumexp = np.zeros(header.tokens, "<f4")
        self.position = 0
        file.seek(self.layout.states_start)

    def add(self, row: int, states: HiddenRow, name: str = "") -> None:
        """Append the states of row number `row`; `name` (its id) is for the message when a value is NaN or infinite.

        Raises InputError for such a value: training on it would poison every weight.
        """
        begin, end = (int(self.index.row_offsets[row + at]) for at in (0, 1))
        where = f"row {row}" + (f" ({name})" if name else "")
        if self.index.group_starts[row] >= 0 or len(states) != end - begin:
            raise ValueError(f"{where}: {len(states)} states for {end - begin} tokens, or written twice")
        width = self.header.hidden_size
        aux, final = (_words(value, self.header.dtype) for value in (states.aux, states.final))
        if aux.shape != (len(states), 3 * width) or final.shape != (len(states), width):
            raise ValueError(f"{where}: aux {aux.shape} and final {final.shape} under hidden size {width}")
        argmax, logsumexp = self.argmax[begin:end], self.logsumexp[begin:end]
        argmax[:], logsumexp[:] = states.argmax.cpu().numpy(), states.logsumexp.cpu().numpy()
        self._refuse_poison(where, aux, final, logsumexp)
        coded = [planes.encode(part) for part in (*np.split(aux, 3, axis=1), final)]
        group = [part.high for part in coded] + [part.low for part in coded]
        self.file.writelines(group)
        self.index.group_starts[row] = self.position
        self.index.frames[row] = [len(part.high) for part in coded]
        self.index.checksums[row] = _checksum(*group, argmax, logsumexp)
        self.position += sum(part.nbytes for part in coded)

    def _refuse_poison(self, where: str, aux: np.ndarray, final: np.ndarray, logsumexp: np.ndarray) -> None:
        bits = EXPONENT[self.header.dtype]
        finite = {
            "aux states": ((aux & bits) != bits).all(axis=1),
            "final state": ((final & bits) != bits).all(axis=1),
            "logsumexp": np.isfinite(logsumexp),
        }
        for name, good in finite.items():
            if not good.all():
                raise InputError(
                    f"{where}: the target's {name} at token {int(np.argmin(good))} holds NaN or infinity; compute with "
                    f"target.dtype=float32 or check the target's weights, and rerun `snakemake capture`"
                )

    def close(self) -> None:
        """Write index and header. Raises ValueError when a row is missing."""
        missing = np.flatnonzero(self.index.group_starts < 0)
        if missing.size:
            raise ValueError(f"{missing.size} rows were never written: {missing[:8].tolist()} ...")
        self.file.seek(0)
        self.file.write(self.layout.render(self.index, self.position))
        for array in (*self.index.arrays(), self.argmax, self.logsumexp):
            self.file.write(array.tobytes())
        self.file.flush()


def write(path: str | Path, header: HiddenHeader, rows: Iterable[HiddenRow]) -> None:
    """Write a whole shard from rows in shard order, atomically (a convenience over `HiddenWriter`)."""
    rows = list(rows)
    with atomic_write(path) as file:
        writer = HiddenWriter(file, header, [len(row) for row in rows])
        for number, row in enumerate(rows):
            writer.add(number, row)
        writer.close()


class HiddenShard:
    """A shard opened for reading: memory mapped, so memory stays flat, and safe to read from several threads."""

    def __init__(self, path: Path, mapped: mmap.mmap | bytes, header: HiddenHeader) -> None:
        self.path, self.header, self._map = path, header, mapped
        self._view = memoryview(mapped)
        layout = container.Layout(header)
        self._states = layout.states_start
        self._argmax, self._logsumexp = layout.places["argmax"], layout.places["logsumexp"]
        # The index is copied: a closed map must not be pinned by views of it.
        self.index = container.Index(
            *(layout.array(name, self._view).copy() for name in ("row_offsets", "group_starts", "frames", "checksums"))
        )
        raw = 4 * header.hidden_size * (container.ITEMSIZE[header.dtype] - 1)  # bytes a token in low planes
        self._sizes = self.index.frames.sum(axis=1, dtype=np.int64) + self.lengths * raw

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        expect_source_sha: str | None = None,
        expect_target: str | None = None,
        expect_aux: AuxLayers | None = None,
    ) -> HiddenShard:
        """Open and check header, index and size; rows are checked as they are read.

        Raises InputError, naming the file and what to run, when it is missing, cut off or changed, or when it was
        made from another token shard, by another target or of other layers than expected.
        """
        path = Path(path)
        try:
            with open(path, "rb") as file:
                empty = file.seek(0, 2) == 0
                mapped = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise InputError(f"{path}: no such hidden-state shard; {remedy(path)}") from None
        try:
            shard = cls(path, mapped, container.read_header(mapped))
            shard._check_frame()
        except (ValueError, KeyError, TypeError, LookupError, InputError, OverflowError) as error:
            raise InputError(f"{path}: not a whole hidden-state shard: {error}; {remedy(path)}") from None
        header = shard.header
        for what, found, expected in (
            ("token shard", header.source_sha256, expect_source_sha),
            ("target", header.target, expect_target),
            ("set of aux layers", header.aux.hf, expect_aux and expect_aux.hf),
        ):
            if expected is not None and found != expected:
                shard.close()
                raise InputError(f"{path}: made from another {what} ({found}, not {expected}); {remedy(path)}")
        return shard

    def _check_frame(self) -> None:
        """Header and index are what was written, and the file is as long as they say."""
        layout, offsets = container.Layout(self.header), self.index.row_offsets
        states = int(self._sizes.sum())
        if len(self._view) != layout.states_start + states:
            raise ValueError(f"it has {len(self._view)} bytes where {layout.states_start + states} were written")
        if bytes(self._view[: layout.data_start]) != layout.render(self.index, states):
            raise ValueError("its header or index has changed since it was written")
        if offsets[0] != 0 or offsets[-1] != self.header.tokens:
            raise ValueError("its rows do not add up to its tokens")

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64 [R]."""
        return np.diff(self.index.row_offsets)

    def __len__(self) -> int:
        return self.header.rows

    def row(self, i: int) -> HiddenRow:
        """Row i in tensors of its own. Raises InputError, naming file and row, when its bytes have changed."""
        if not 0 <= i < len(self):
            raise IndexError(f"{self.path}: row {i} of {len(self)}")
        group, argmax, logsumexp = self._read(i)
        tokens, width, dtype = len(argmax), self.header.hidden_size, TORCH[self.header.dtype]
        aux = torch.empty(tokens, 3 * width, dtype=dtype)
        final = torch.empty(tokens, width, dtype=dtype)
        outs = (*np.split(_words(aux, self.header.dtype), 3, axis=1), _words(final, self.header.dtype))
        frames = self.index.frames[i].tolist()
        at, low_at = 0, sum(frames)
        low_size = tokens * width * (dtype.itemsize - 1)
        try:
            for frame, out in zip(frames, outs, strict=True):
                low = np.frombuffer(group[low_at : low_at + low_size], np.uint8)
                planes.decode(group[at : at + frame], low, out)
                at, low_at = at + frame, low_at + low_size
        except ValueError as error:
            raise InputError(f"{self.path}: row {i} cannot be decoded ({error}); {remedy(self.path)}") from None
        return HiddenRow(aux, final, torch.from_numpy(argmax.copy()), torch.from_numpy(logsumexp.copy()))

    def verify(self) -> None:
        """Check every byte of every row. Raises InputError naming the first damaged row."""
        for i in range(len(self)):
            self._read(i)

    def _read(self, i: int) -> tuple[memoryview, np.ndarray, np.ndarray]:
        """Row i's group, argmax and logsumexp as checked views of the map."""
        begin, end = (int(self.index.row_offsets[i + at]) for at in (0, 1))
        start = self._states + int(self.index.group_starts[i])
        group = self._view[start : start + int(self._sizes[i])]
        argmax = np.frombuffer(self._view, "<i4", end - begin, self._argmax + 4 * begin)
        logsumexp = np.frombuffer(self._view, "<f4", end - begin, self._logsumexp + 4 * begin)
        if _checksum(group, argmax, logsumexp) != self.index.checksums[i]:
            raise InputError(f"{self.path}: row {i} has changed since it was written; {remedy(self.path)}")
        return group, argmax, logsumexp

    def close(self) -> None:
        """Unmap the file. Rows read before stay valid."""
        with contextlib.suppress(BufferError):  # a thread is still reading a row: unmapped when it is done
            self._view.release()
            if isinstance(self._map, mmap.mmap):
                self._map.close()

    def __enter__(self) -> HiddenShard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def remedy(path: Path) -> str:
    """What to run when a shard is missing or wrong: the store is checked too, and only damaged shards are captured."""
    return f"delete it and run `snakemake {path}`"


def _words(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """A tensor's bits as unsigned words; a view when it is in that dtype, contiguous and on the CPU already."""
    tensor = tensor.detach().to("cpu", TORCH[dtype]).contiguous()
    return tensor.view(torch.int16 if dtype == "bfloat16" else torch.int32).numpy().view(f"<u{tensor.itemsize}")


def _checksum(*parts: bytes | memoryview | np.ndarray) -> int:
    """CRC-32 of the parts, one behind the other."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value
