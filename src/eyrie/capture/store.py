"""The store of hidden states: shards by the hash of what they were made from, shared by all runs.

Nothing in it is declared to Snakemake, which deletes, forgets and reruns; results are hard links of its files. A
shard's address is the hash of its header, and its header holds everything that decided its content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from eyrie.errors import InputError, MissingError
from eyrie.files import atomic_path, atomic_write, fingerprint, sync_directory
from eyrie.shards.hidden import HiddenHeader, HiddenShard

# Stored bytes over raw bytes, with some room: measured 0.68 (bfloat16) and 0.85 (float32).
EXPECTED = {"bfloat16": 0.72, "float32": 0.9}
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


class HiddenStore:
    """A folder of shards `KEY.safetensors`. Several processes may use it at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def key(self, header: HiddenHeader) -> str:
        """The address of the shard with this header."""
        return fingerprint(header.to_json(), length=32)

    def path(self, header: HiddenHeader) -> Path:
        """Where the shard with this header is, or will be."""
        return self.folder / f"{self.key(header)}.safetensors"

    def check(self, header: HiddenHeader) -> str | None:
        """None when the shard is here and every byte of it is right, else what is wrong ("" when it is not here)."""
        path = self.path(header)
        if not path.exists():
            return ""
        try:
            with HiddenShard.open(path) as shard:
                if shard.header != header:
                    return f"{path}: its header is not the one that its name stands for"
                shard.verify()
        except InputError as error:
            return str(error)
        return None

    def adopt(self, header: HiddenHeader, candidate: Path) -> bool:
        """Take a result that has lost its store file back into the store, when it is that shard and whole."""
        if not candidate.is_file():
            return False
        try:
            with HiddenShard.open(candidate) as shard:
                if shard.header != header:
                    return False
                shard.verify()
        except InputError:
            return False
        place(candidate, self.path(header))
        return True

    @contextlib.contextmanager
    def lock(self, header: HiddenHeader) -> Iterator[None]:
        """Hold the only right to write this shard; a second process waits and then finds it written.

        The lock ends with its process, so what a killed writer left half-written is removed here.
        """
        path = self.folder / f".{self.key(header)}.lock"
        while True:
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            fcntl.flock(handle, fcntl.LOCK_EX)
            # A waiter may have got the lock of a file that its holder has since removed.
            if path.exists() and os.path.samestat(os.fstat(handle), os.stat(path)):
                break
            os.close(handle)
        try:
            for left in self.folder.glob(f".{self.path(header).name}.*.tmp"):
                left.unlink()
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(handle)

    @contextlib.contextmanager
    def create(self, header: HiddenHeader) -> Iterator[BinaryIO]:
        """Open the shard's file for writing; it appears when all went well. Raises MissingError on a full disk."""
        with atomic_write(self.path(header)) as file:
            yield file


def place(source: Path, target: Path) -> None:
    """Make `target` the file `source`: a hard link, or a copy where the two cannot be linked."""
    if target.exists() and os.path.samefile(source, target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{os.getpid()}.link"
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        with atomic_path(target) as copy:
            shutil.copyfile(source, copy)
        return
    os.replace(temporary, target)
    sync_directory(target.parent)


def needed_bytes(headers: Iterable[HiddenHeader]) -> int:
    """Disk that shards with these headers will take, estimated from above."""
    return sum(int(header.raw_bytes * EXPECTED[header.dtype]) + 65536 for header in headers)


def check_disk(folder: Path, needed: int) -> None:
    """Raise MissingError unless `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MissingError(
            f"capture needs about {human(needed)} in {folder}, where {human(free)} are free; free some space, or set "
            f"store=/ANOTHER/DISK"
        )


def human(count: float) -> str:
    """Bytes as 1.2 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
