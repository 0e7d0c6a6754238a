"""Which prompts are held out: by a hash of their own ids, so the answer stays the same as the corpus grows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from eyrie.errors import InputError


def prompt_key(prompt: NDArray[np.int32], seed: int) -> int:
    """64-bit hash of a prompt's token ids; two answers to one prompt share it."""
    content = f"{seed}:".encode() + prompt.astype("<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def held_out(keys: Iterable[int], share: float) -> Collection[int]:
    """The keys of the prompts that are held out, about `share` of them.

    A prompt is held out when its key lies in the lowest `share` of all 64-bit numbers. When that takes none, the
    lowest key is; when it takes all, the highest trains: neither side is ever empty.

    Raises InputError when there are fewer than two prompts.
    """
    distinct = sorted(set(keys))
    if len(distinct) < 2:
        raise InputError(f"the corpus has {len(distinct)} distinct prompts; training and hold-out need one each")
    limit = int(share * 2**64)
    out = [key for key in distinct if key < limit] or distinct[:1]
    return frozenset(out if len(out) < len(distinct) else distinct[:-1])
