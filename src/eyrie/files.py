"""Reading and writing files so that a crash leaves the old file or the new one, never half of one.

All JSON here is canonical (sorted keys, no spaces, ASCII escapes) and all JSON Lines are split on b"\\n" only:
U+2028 and its kin inside a string must not end a record.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from eyrie.errors import InputError, MissingError


def canonical_json(value: Any) -> str:
    """`value` as JSON that is equal for equal values: sorted keys, no spaces, ASCII only, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(*values: Any, length: int = 16) -> str:
    """First `length` hex digits of the SHA-256 of the canonical JSON of `values`."""
    return hashlib.sha256(canonical_json(list(values)).encode()).hexdigest()[:length]


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success fsync it and rename it onto `path`.

    On an exception the temporary file is removed and `path` stays as it was. Raises MissingError when there is no
    room for it, or no right to write there.
    """
    target = Path(path)
    with _explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        os.close(handle)
        with _renamed(Path(name), target) as temporary:
            yield temporary


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """The errors of a disk that cannot be written, in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free space there and run it again: what is finished stays"
            raise MissingError(f"{target}: {error.strerror} ({target.parent}); {advice}") from None
        named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else None
        ours = named is not None and (named.parent == target.parent or target.is_relative_to(named))
        if error.errno in (errno.EROFS, errno.EACCES) and ours:
            advice = "results, store and vault must be in folders that can be written"
            raise MissingError(f"{target}: cannot be written ({error.strerror}); {advice}") from None
        raise


@contextlib.contextmanager
def _renamed(temporary: Path, target: Path) -> Iterator[Path]:
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
        sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable (a rename is not until its folder is synced)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` for binary writing through `atomic_path`."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        yield file
        file.flush()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as readable, deterministic JSON (two-space indent, sorted keys)."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def read_json(path: str | os.PathLike[str], *, hint: str = "") -> Any:
    """The JSON value in `path`; `hint` says what to run when it is missing or broken."""
    tail = f"; {hint}" if hint else ""
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{tail}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid JSON ({error}){tail}") from None


def write_jsonl_zst(path: str | os.PathLike[str], rows: Iterable[Any], *, level: int = 6) -> int:
    """Write one canonical JSON value a line, zstd-compressed with a checksum; returns the number of lines.

    The same rows give the same bytes.
    """
    count = 0
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    with atomic_write(path) as file, compressor.stream_writer(file, closefd=False) as stream:
        for row in rows:
            stream.write(canonical_json(row).encode() + b"\n")
            count += 1
    return count


def read_jsonl_zst(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The values of a `.jsonl.zst` file, one at a time.

    Raises InputError with the file's name and the line when it is missing, cut off, damaged or no JSON.
    """
    for number, line in enumerate(lines_zst(path), start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is not JSON ({error}); delete the file and rerun") from None


def lines_zst(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a one-frame zstd file without their b"\\n"; the frame's end and checksum must be there.

    Raises InputError with the file's name and the line when it is missing, cut off or damaged.
    """
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    rest, number = b"", 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 13):  # it may decompress to a hundred times as much
                *lines, rest = (rest + decompressor.decompress(chunk)).split(b"\n")
                number += len(lines)
                yield from lines
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; build it with `snakemake {path}`") from None
    except zstandard.ZstdError as error:
        raise InputError(f"{path}: damaged after line {number} ({error}); delete it and rerun") from None
    if rest or not decompressor.eof:
        raise InputError(f"{path}: cut off after line {number}; delete it and rerun")


def count_lines_zst(path: str | os.PathLike[str]) -> int:
    """Lines of a zstd file, counted without keeping any. What is wrong with the file is for `lines_zst` to say."""
    try:
        with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
    except (OSError, zstandard.ZstdError):
        return 0
