"""Hidden-state shards give back what was written, and refuse every damaged or foreign file by name."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from eyrie.errors import InputError
from eyrie.shards import hidden
from eyrie.shards.aux import AuxLayers
from eyrie.shards.hidden import HiddenHeader, HiddenRow, HiddenShard, HiddenWriter

LENGTHS = (5, 17, 1, 9, 40)
WIDTH = 16
AUX = AuxLayers.default(8)


def make_rows(
    dtype: torch.dtype = torch.bfloat16, lengths: tuple[int, ...] = LENGTHS, seed: int = 0
) -> list[HiddenRow]:
    random = torch.Generator().manual_seed(seed)
    return [
        HiddenRow(
            torch.randn(tokens, 3 * WIDTH, generator=random).to(dtype),
            torch.randn(tokens, WIDTH, generator=random).to(dtype),
            torch.randint(0, 50_000, (tokens,), generator=random, dtype=torch.int32),
            torch.randn(tokens, generator=random),
        )
        for tokens in lengths
    ]


def make_header(dtype: str = "bfloat16", lengths: tuple[int, ...] = LENGTHS) -> HiddenHeader:
    settings = {"engine": "transformers", "compute_dtype": "float32", "batch_tokens": 64}
    return HiddenHeader(len(lengths), sum(lengths), WIDTH, AUX, dtype, "ab" * 32, "0123456789abcdef", settings)


def assert_same(found: HiddenRow, expected: HiddenRow) -> None:
    for name in ("aux", "final", "argmax", "logsumexp"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), name


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "00000.safetensors"
    hidden.write(path, make_header(), make_rows())
    return path


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_row_comes_back_bit_for_bit_in_any_order(tmp_path: Path, dtype: str) -> None:
    rows = make_rows(hidden.TORCH[dtype])
    path = tmp_path / "shard.safetensors"
    hidden.write(path, make_header(dtype), rows)
    with HiddenShard.open(path) as opened:
        assert opened.header == make_header(dtype)
        assert opened.lengths.tolist() == list(LENGTHS)
        for i in (3, 0, 4, 1, 2):
            assert_same(opened.row(i), rows[i])


def test_rows_written_in_another_order_read_the_same(tmp_path: Path) -> None:
    rows, path = make_rows(), tmp_path / "shard.safetensors"
    with open(path, "wb") as file:
        writer = HiddenWriter(file, make_header(), LENGTHS)
        for i in (4, 1, 3, 0, 2):
            writer.add(i, rows[i])
        writer.close()
    with HiddenShard.open(path) as opened:
        for i, row in enumerate(rows):
            assert_same(opened.row(i), row)


def test_values_in_a_wider_type_are_rounded_to_the_stored_one(tmp_path: Path) -> None:
    rows, path = make_rows(torch.float32), tmp_path / "shard.safetensors"
    hidden.write(path, make_header("bfloat16"), rows)
    with HiddenShard.open(path) as opened:
        assert torch.equal(opened.row(1).aux, rows[1].aux.to(torch.bfloat16))


def test_same_rows_give_the_same_bytes(tmp_path: Path, shard: Path) -> None:
    hidden.write(tmp_path / "again", make_header(), make_rows())
    assert (tmp_path / "again").read_bytes() == shard.read_bytes()


def test_empty_shard_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    hidden.write(path, make_header(lengths=()), [])
    with HiddenShard.open(path, expect_source_sha="ab" * 32) as opened:
        opened.verify()
        assert len(opened) == 0 and opened.header.tokens == 0


def test_file_is_plain_safetensors_with_the_layers_spelled_out(shard: Path) -> None:
    with safetensors.safe_open(shard, "numpy") as file:
        assert set(file.keys()) == {
            "row_offsets", "group_starts", "frames", "checksums", "argmax", "logsumexp", "states",
        }  # fmt: skip
        assert np.array_equal(np.diff(file.get_tensor("row_offsets")), LENGTHS)
        header = json.loads(file.metadata()["eyrie"])
    assert header["format"] == "eyrie-hidden-1" and header["norm"] == "post"
    assert header["aux_layers"] == {"hf": [2, 4, 5], "sglang": [1, 3, 4], "vllm": [2, 4, 5], "target_layers": 8}


def test_rows_are_read_from_several_threads_at_once(tmp_path: Path) -> None:
    lengths = tuple(range(1, 60))
    rows, path = make_rows(lengths=lengths), tmp_path / "shard.safetensors"
    hidden.write(path, make_header(lengths=lengths), rows)
    with HiddenShard.open(path) as opened, ThreadPoolExecutor(8) as pool:
        order = list(range(59)) * 4
        for i, row in zip(order, pool.map(opened.row, order), strict=True):
            assert_same(row, rows[i])


def test_any_changed_byte_is_noticed_and_the_file_named(tmp_path: Path, shard: Path) -> None:
    good, bad = shard.read_bytes(), tmp_path / "bad.safetensors"
    places = np.random.default_rng(0).integers(0, len(good), 300).tolist() + list(range(0, 1200, 7)) + [len(good) - 1]
    for place in places:
        bad.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with pytest.raises(InputError, match="bad.safetensors.*snakemake"), HiddenShard.open(bad) as opened:
            opened.verify()


def test_a_flipped_byte_of_one_row_names_that_row_and_spares_the_others(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1  # the last group is that of the last row
    shard.write_bytes(data)
    with HiddenShard.open(shard) as opened:
        assert_same(opened.row(0), make_rows()[0])
        with pytest.raises(InputError, match="row 4 has changed"):
            opened.row(4)


@pytest.mark.parametrize("keep", [0, 4, 100, 1500, -1])
def test_truncated_file_is_refused(shard: Path, keep: int) -> None:
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"00000.safetensors: not a whole hidden-state shard.*run `snakemake"):
        HiddenShard.open(shard)


def test_longer_file_and_other_safetensors_are_refused(shard: Path, tmp_path: Path) -> None:
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(InputError, match="not a whole"):
        HiddenShard.open(shard)
    safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(InputError, match="other: not a whole"):
        HiddenShard.open(tmp_path / "other")
    with pytest.raises(InputError, match="missing: no such"):
        HiddenShard.open(tmp_path / "missing")


def test_shard_of_another_origin_is_refused(shard: Path) -> None:
    with pytest.raises(InputError, match="another token shard"):
        HiddenShard.open(shard, expect_source_sha="cd" * 32)
    with pytest.raises(InputError, match="another target"):
        HiddenShard.open(shard, expect_target="fedcba9876543210")
    with pytest.raises(InputError, match="another set of aux layers"):
        HiddenShard.open(shard, expect_aux=AuxLayers(1, 4, 5, 8))
    HiddenShard.open(shard, expect_source_sha="ab" * 32, expect_target="0123456789abcdef", expect_aux=AUX).close()


@pytest.mark.parametrize("field", ["aux", "final", "logsumexp"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nan_and_infinity_are_refused_when_written(tmp_path: Path, field: str, value: float, dtype: str) -> None:
    row = make_rows(hidden.TORCH[dtype], (6,))[0]
    getattr(row, field)[3, ...] = value
    path = tmp_path / "shard.safetensors"
    with open(path, "wb") as file:
        writer = HiddenWriter(file, make_header(dtype, (6,)), (6,))
        with pytest.raises(InputError, match=r"row 0 \(glaive-17\).*token 3"):
            writer.add(0, row, "glaive-17")


def test_writer_refuses_missing_doubled_and_wrong_rows(tmp_path: Path) -> None:
    rows = make_rows()
    with open(tmp_path / "shard", "wb") as file:
        writer = HiddenWriter(file, make_header(), LENGTHS)
        writer.add(0, rows[0])
        with pytest.raises(ValueError, match="written twice"):
            writer.add(0, rows[0])
        with pytest.raises(ValueError, match="for 17 tokens"):
            writer.add(1, rows[2])
        with pytest.raises(ValueError, match="never written"):
            writer.close()
        with pytest.raises(ValueError, match="rows of"):
            HiddenWriter(file, replace(make_header(), tokens=3), LENGTHS)


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    rows = make_rows()
    rows[2].final[0, 0] = float("nan")
    with pytest.raises(InputError):
        hidden.write(tmp_path / "shard", make_header(), rows)
    assert not list(tmp_path.iterdir())
