"""Lossless byte planes: what of a floating-point array can be compressed is compressed, the rest is stored as it is.

The high byte of a bfloat16 or float32 holds the sign and seven exponent bits: states of a transformer fill only about
2.8 of its 8 bits. The bytes below are mantissa, as good as random, and no compressor gains on them. Splitting the two
costs a shift, saves the compressor half or more of its work, and gives 1.48 to 1.54 on bf16 states where zstd on the
whole array gives 1.37 (zstd level 3 on the plane is slower by half and no smaller).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import zstandard

LEVEL = 1
WORDS = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_local = threading.local()  # a zstd context must not be shared by threads


@dataclass(frozen=True)
class Planes:
    """One encoded array: the zstd frame of its high bytes, and its other bytes as they are."""

    high: bytes
    low: np.ndarray  # uint8 [values * (itemsize - 1)]

    @property
    def nbytes(self) -> int:
        return len(self.high) + self.low.nbytes


def encode(words: np.ndarray) -> Planes:
    """Split little-endian words (uint16 or uint32, any shape and strides) into planes; same words, same bytes."""
    width = words.dtype.itemsize
    if words.dtype != WORDS.get(width):
        raise TypeError(f"byte planes hold unsigned words of 2 or 4 bytes, not {words.dtype}")
    high = (words >> (8 * (width - 1))).astype(np.uint8)
    if width == 2:
        low = words.astype(np.uint8).reshape(-1)
    else:
        low = np.ascontiguousarray(words).view(np.uint8).reshape(-1, width)[:, :-1].reshape(-1)
    return Planes(high=_compressor().compress(np.ascontiguousarray(high)), low=low)


def decode(high: memoryview | bytes, low: np.ndarray, out: np.ndarray) -> None:
    """Undo `encode` into `out` (words of the original type and shape; may be strided).

    Raises ValueError when the frame is damaged or holds another number of bytes than `out` has values.
    """
    width, values = out.dtype.itemsize, out.size
    try:
        plane = _decompressor().decompress(high, max_output_size=values) if values else b""
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from None
    if len(plane) != values or low.size != values * (width - 1):
        raise ValueError(f"planes of {len(plane)} and {low.size} bytes do not make {values} values of {width} bytes")
    top = np.frombuffer(plane, np.uint8).reshape(out.shape)
    np.left_shift(top, 8 * (width - 1), out=out, dtype=out.dtype)
    if width == 2:
        np.bitwise_or(out, low.reshape(out.shape), out=out)
    else:
        parts = low.reshape(*out.shape, width - 1)
        for byte in range(width - 1):
            np.bitwise_or(out, parts[..., byte].astype(out.dtype) << (8 * byte), out=out)


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False, write_content_size=True)
    return _local.compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    return _local.decompressor
