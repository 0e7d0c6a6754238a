"""Open the vault's file to write, and say in one sentence why it cannot be opened.

Only SQLite opens the file. Locks belong to the process: were the file read beside SQLite and closed again, the locks of
every connection here would be gone without a word, and another job that ends would delete the write-ahead log, with
commits in it, under this one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from eyrie.errors import EyrieError, InputError, MissingError
from eyrie.files import sync_directory
from eyrie.vault.ddl import APPLICATION_ID, MIGRATIONS, SCHEMA, SCHEMA_VERSION

FILE_NAME = "vault.sqlite"
BUSY_S = 60.0  # how long one job waits for another's commit
WAL_BYTES = 64 << 20  # what a commit leaves of the write-ahead log at most, as far as readers allow


def explain(error: sqlite3.Error, path: Path) -> EyrieError:
    """SQLite's error as what the user can do about it. Nothing already committed is lost in any of these cases."""
    text = str(error)
    if "readonly" in text or "unable to open" in text:
        return MissingError(f"{path}: the vault cannot be written ({text}); make its folder writable and rerun")
    if "full" in text or "disk I/O" in text:
        return MissingError(
            f"{path}: the disk failed or is full ({text}); free space and rerun, nothing stored is lost"
        )
    if "locked" in text or "busy" in text:
        return MissingError(f"{path}: another process held the vault for over {BUSY_S:.0f} s; end it and rerun")
    if "not a database" in text:
        return InputError(f"{path}: not a vault ({text}); move it away or point `vault` elsewhere")
    if isinstance(error, sqlite3.DatabaseError) and "malformed" in text:
        return damaged(path, text)
    return EyrieError(f"{path}: SQLite failed ({text})")


def damaged(path: Path, what: str) -> InputError:
    """The file is there but what it holds cannot be right."""
    return InputError(
        f"{path}: the vault is damaged ({what}); keep the file, copy it and run `sqlite3 COPY .recover`, "
        "or restore a backup"
    )


def connect(folder: str | Path) -> sqlite3.Connection:
    """A connection to `folder`/vault.sqlite in WAL mode, its schema checked, created or migrated.

    Every commit is synced to disk before it returns. Raises InputError when the file is no vault, is damaged or was
    made by a newer Eyrie; MissingError when it cannot be written.
    """
    path = Path(folder) / FILE_NAME
    try:
        fresh = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingError(f"{path}: cannot be opened ({error.strerror}); make its folder writable and rerun") from None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        _ensure_schema(connection, path)
    except sqlite3.Error as error:
        raise explain(error, path) from None
    if fresh:  # SQLite syncs the file's name; the folder's own is ours
        sync_directory(path.parent.parent)
    return connection


def schema_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema of a vault, 0 for an empty file. Raises InputError when it is no vault or one of a newer Eyrie."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if application == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        return 0
    if application != APPLICATION_ID:
        raise InputError(f"{path}: a database of another program, not a vault; point `vault` elsewhere")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: a vault of schema {version}; this Eyrie knows schema {SCHEMA_VERSION}: upgrade Eyrie"
        )
    if version not in (*MIGRATIONS, SCHEMA_VERSION):
        raise InputError(f"{path}: a vault of schema {version}, which no released Eyrie wrote")
    return version


def _ensure_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Check the version, create the tables or migrate them; two jobs that start at once make one vault."""
    if schema_of(connection, path) != SCHEMA_VERSION:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = schema_of(connection, path)  # another job may have been faster
            script = SCHEMA if version == 0 else "".join(MIGRATIONS[v] for v in range(version, SCHEMA_VERSION))
            if version != SCHEMA_VERSION:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    connection.execute("PRAGMA journal_mode = WAL")


def _statements(script: str) -> list[str]:
    """`script` cut into statements (executescript would commit each on its own)."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found


def free_bytes(folder: str | Path) -> int:
    """Bytes that this user may still write on the disk of `folder`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
