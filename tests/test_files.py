"""File helpers: nothing torn, nothing guessed, the same bytes for the same rows."""

from __future__ import annotations

import os
import subprocess

import pytest

from eyrie.errors import InputError, MissingError
from eyrie.files import (
    atomic_write,
    canonical_json,
    fingerprint,
    read_json,
    read_jsonl_zst,
    sha256_file,
    write_json,
    write_jsonl_zst,
)  # fmt: skip

ROWS = [{"text": "a\u2028b\u2029c\x85d"}, {"n": 2, "lone": "\ud800"}, {"empty": ""}]


def test_rows_come_back_with_every_character_and_the_same_bytes(tmp_path):
    assert write_jsonl_zst(tmp_path / "a.jsonl.zst", ROWS) == 3
    write_jsonl_zst(tmp_path / "b.jsonl.zst", ROWS)
    assert list(read_jsonl_zst(tmp_path / "a.jsonl.zst")) == ROWS
    assert sha256_file(tmp_path / "a.jsonl.zst") == sha256_file(tmp_path / "b.jsonl.zst")


def test_a_truncated_file_is_never_read_as_a_short_one(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    write_jsonl_zst(path, [{"i": i, "x": os.urandom(20).hex()} for i in range(2000)])
    whole = path.read_bytes()
    for cut in range(1, len(whole), len(whole) // 40):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match="a.jsonl.zst"):
            list(read_jsonl_zst(path))


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_file_that_lost_its_last_bytes_is_refused(tmp_path, cut):
    path = tmp_path / "a.jsonl.zst"
    write_jsonl_zst(path, ROWS)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match="a.jsonl.zst"):
        list(read_jsonl_zst(path))


def test_a_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    write_jsonl_zst(path, [{"i": i} for i in range(1000)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(InputError, match="a.jsonl.zst"):
        list(read_jsonl_zst(path))


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": True})
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert read_json(path) == {"old": True}
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can only be mounted by root")
def test_a_full_disk_is_named_and_leaves_the_old_file_and_no_litter(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        path = tmp_path / "rows.jsonl.zst"
        write_jsonl_zst(path, [{"old": 1}])
        with pytest.raises(MissingError, match="No space left .*free space"):
            write_jsonl_zst(path, ({"n": os.urandom(500).hex()} for _ in range(1000)))
        assert list(read_jsonl_zst(path)) == [{"old": 1}]
        assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl.zst"]
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(MissingError, match="cannot be written"):
            write_jsonl_zst(path, [{"new": 1}])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_missing_and_broken_files_are_named_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"no such file; run it"):
        read_json(tmp_path / "a.json", hint="run it")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match="no such file"):
        list(read_jsonl_zst(tmp_path / "none.jsonl.zst"))


def test_canonical_json_ignores_order_and_refuses_nan():
    assert canonical_json({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1})
    with pytest.raises(ValueError):
        canonical_json(float("nan"))
