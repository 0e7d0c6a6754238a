"""Open the vault only to read it: beside running jobs, and on a disk that cannot be written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

from eyrie.errors import InputError, MissingError
from eyrie.vault.ddl import SCHEMA_VERSION
from eyrie.vault.opening import BUSY_S, FILE_NAME, connect, explain, schema_of


def connect_to_read(folder: str | Path, scratch: tempfile.TemporaryDirectory[str]) -> sqlite3.Connection:
    """A read-only connection to `folder`/vault.sqlite.

    A vault of an older schema, or one that a crash left with an unmerged log on a read-only disk, is copied to
    `scratch` and brought up there; the file itself stays as it is. Raises InputError when there is no vault, or none
    that this Eyrie can read.
    """
    path = Path(folder) / FILE_NAME
    try:
        if not path.exists():
            raise InputError(f"{path}: no vault here; it is made by the first generate job")
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise MissingError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        connection = _open(path, Path(scratch.name))
        version = schema_of(connection, path)
        if version == 0:
            raise InputError(f"{path}: an empty file, no vault; a generate job fills it")
        if version < SCHEMA_VERSION:
            connection = _brought_up(connection, Path(scratch.name))
        connection.execute("PRAGMA query_only = ON")
        return connection
    except sqlite3.Error as error:
        raise explain(error, path) from None


def _open(path: Path, scratch: Path) -> sqlite3.Connection:
    try:
        return _reading(path, "mode=ro")
    except sqlite3.OperationalError as error:
        if "unable to open" not in str(error) and "readonly" not in str(error):
            raise
    log = path.with_name(path.name + "-wal")
    if not log.exists() or log.stat().st_size == 0:  # nobody can be writing here
        return _reading(path, "immutable=1")
    for source in (path, log):
        shutil.copyfile(source, scratch / source.name)
    return _reading(scratch / path.name, "mode=rw")


def _reading(path: Path, how: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}?{how}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _brought_up(old: sqlite3.Connection, scratch: Path) -> sqlite3.Connection:
    """A migrated copy of the vault behind `old`."""
    folder = scratch / "brought-up"
    folder.mkdir()
    copy = sqlite3.connect(folder / FILE_NAME)
    old.backup(copy)
    copy.close()
    old.close()
    return connect(folder)
