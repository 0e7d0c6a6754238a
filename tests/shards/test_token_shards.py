"""Token shards: same rows, same bytes; and nothing is read that the manifest does not vouch for."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eyrie.errors import InputError
from eyrie.shards import tokens
from eyrie.shards.slots import trained_slots
from eyrie.shards.tokens import TokenRow, read_manifest, read_shard, write_manifest, write_shard


def random_rows(count, seed=0):
    random = np.random.default_rng(seed)
    found = []
    for index in range(count):
        ids, spans = [], []
        for _ in range(random.integers(1, 4)):
            ids += random.integers(0, 1000, random.integers(1, 6)).tolist()
            start = len(ids)
            ids += random.integers(0, 1000, random.integers(1, 9)).tolist()
            spans.append((start, len(ids)))
        found.append(TokenRow(f"r{index}é", index, 0, np.array(ids, np.int32), spans))
    return found


def save(folder, rows, **changes):
    entry = write_shard(folder / "00000.parquet", rows, dataset="d", target="t")
    write_manifest(folder, **{"dataset": "d", "target": "t", "slice": {}, "shards": [entry], "dropped": {},
                              "counted": {}, **changes})  # fmt: skip
    return entry


@pytest.mark.parametrize("count", [0, 1, 7, tokens.ROW_GROUP + 5])
def test_rows_come_back_as_written(tmp_path, count):
    rows = random_rows(count)
    entry = save(tmp_path, rows)
    manifest = read_manifest(tmp_path)
    shard = manifest.read(manifest.shards[0])
    assert (shard.dataset, shard.target, len(shard)) == ("d", "t", count)
    assert entry.tokens == len(shard.input_ids) == shard.offsets[-1]
    for number, row in enumerate(rows):
        back = shard.row(number)
        assert (back.id, back.index, back.turn, back.spans) == (row.id, row.index, row.turn, row.spans)
        assert np.array_equal(back.input_ids, row.input_ids) and back.input_ids.dtype == np.int32


def test_same_rows_give_the_same_bytes(tmp_path):
    first = write_shard(tmp_path / "a" / "00000.parquet", random_rows(50), dataset="d", target="t")
    second = write_shard(tmp_path / "b" / "00000.parquet", random_rows(50), dataset="d", target="t")
    assert first == second
    assert write_shard(tmp_path / "c" / "00000.parquet", random_rows(50, seed=1)).sha256 != first.sha256


def test_trained_tokens_are_the_labels_of_the_first_draft_step(tmp_path):
    rows = random_rows(40)
    entry = write_shard(tmp_path / "00000.parquet", rows)
    shard = read_shard(tmp_path / "00000.parquet")
    expected = []
    for row in rows:
        labels = np.zeros(len(row.input_ids), bool)
        labels[np.nonzero(trained_slots(row.spans, len(row.input_ids), 0))[0] + 2] = True
        expected.append(labels)
    assert np.array_equal(shard.trained(), np.concatenate(expected))
    assert entry.trained_tokens == shard.trained().sum()


@pytest.mark.parametrize("spans", [[], [(0, 2)], [(1, 1)], [(1, 9)], [(2, 4), (3, 5)], [(3, 5), (1, 2)]])
def test_impossible_spans_are_refused_with_the_rows_name(tmp_path, spans):
    with pytest.raises(InputError, match="row r7 turn 0"):
        write_shard(tmp_path / "00000.parquet", [TokenRow("r7", 7, 0, np.arange(6, dtype=np.int32), spans)])
    assert not list(tmp_path.iterdir())


def test_a_changed_shard_is_refused(tmp_path):
    save(tmp_path, random_rows(5))
    write_shard(tmp_path / "00000.parquet", random_rows(4), dataset="d", target="t")
    manifest = read_manifest(tmp_path)
    with pytest.raises(InputError, match=r"00000.parquet: its content .* run `snakemake .*manifest.json`"):
        manifest.read(manifest.shards[0])


def test_a_missing_shard_is_named(tmp_path):
    save(tmp_path, random_rows(5))
    (tmp_path / "00000.parquet").unlink()
    with pytest.raises(InputError, match=r"00000.parquet: no such token shard; delete .* and run"):
        read_manifest(tmp_path)


def test_foreign_and_broken_files_are_refused(tmp_path):
    path = tmp_path / "00000.parquet"
    pq.write_table(pa.table({"id": ["a"]}), path)
    with pytest.raises(InputError, match="not a token shard of format"):
        read_shard(path)
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_shard(path)
    with pytest.raises(InputError, match=r"manifest.json: no such file; .*snakemake"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a manifest of format"):
        read_manifest(tmp_path)
