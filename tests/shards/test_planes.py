"""Byte planes give back every bit, and notice when they cannot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from eyrie.shards import planes


def states(dtype: torch.dtype, *shape: int, seed: int = 0) -> np.ndarray:
    """Gaussian values as unsigned words."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return values.view(torch.int16 if dtype == torch.bfloat16 else torch.int32).numpy().view(f"<u{dtype.itemsize}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (7, 48), (300, 64)])
def test_every_bit_comes_back(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    words = states(dtype, *shape)
    coded = planes.encode(words)
    out = np.empty_like(words)
    planes.decode(coded.high, coded.low, out)
    assert np.array_equal(out, words)


@pytest.mark.parametrize("width", [2, 4])
def test_every_pattern_comes_back_nan_and_infinity_too(width: int) -> None:
    words = np.random.default_rng(0).integers(0, 256**width, (512, 33), dtype=f"<u{width}")
    coded = planes.encode(words)
    out = np.empty_like(words)
    planes.decode(coded.high, coded.low, out)
    assert np.array_equal(out, words)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_columns_of_a_wider_array_are_read_and_written_in_place(dtype: torch.dtype) -> None:
    words = states(dtype, 20, 96)
    coded = planes.encode(words[:, 32:64])
    out = np.zeros_like(words)
    planes.decode(coded.high, coded.low, out[:, 32:64])
    assert np.array_equal(out[:, 32:64], words[:, 32:64])
    assert not out[:, :32].any() and not out[:, 64:].any()


def test_same_words_give_same_bytes_from_any_thread() -> None:
    words = states(torch.bfloat16, 200, 64)
    with ThreadPoolExecutor(4) as pool:
        coded = list(pool.map(planes.encode, [words] * 16))
    assert len({(item.high, item.low.tobytes()) for item in coded}) == 1


def test_high_plane_of_gaussian_states_shrinks_to_near_its_entropy() -> None:
    words = states(torch.bfloat16, 1000, 576)
    counts = np.bincount((words >> 8).reshape(-1), minlength=256) / words.size
    entropy = -(counts[counts > 0] * np.log2(counts[counts > 0])).sum()
    bits = len(planes.encode(words).high) * 8 / words.size
    assert entropy <= bits < entropy * 1.06


def test_damage_and_wrong_sizes_are_noticed() -> None:
    words = states(torch.bfloat16, 64, 64)
    coded = planes.encode(words)
    with pytest.raises(ValueError, match="zstd"):
        planes.decode(coded.high[: len(coded.high) // 2], coded.low, np.empty_like(words))
    with pytest.raises(ValueError, match="do not make"):
        planes.decode(coded.high, coded.low[:-1], np.empty_like(words))
    with pytest.raises(ValueError):
        planes.decode(coded.high, coded.low, np.empty((65, 64), "<u2"))
    with pytest.raises(TypeError, match="unsigned words"):
        planes.encode(np.zeros(3, np.float32))
