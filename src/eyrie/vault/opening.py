"""Open the vault's file, and say in one sentence why it cannot be opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from eyrie.errors import EyrieError, InputError, MissingError
from eyrie.vault.ddl import APPLICATION_ID, SCHEMA, SCHEMA_VERSION

FILE_NAME = "vault.sqlite"
BUSY_S = 60.0  # how long one job waits for another's commit
_SQLITE_HEADER = b"SQLite format 3\0"


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
    if isinstance(error, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text):
        return InputError(
            f"{path}: the vault is damaged ({text}); keep the file, copy it and run `sqlite3 COPY .recover`, "
            "or restore a backup"
        )
    return EyrieError(f"{path}: SQLite failed ({text})")


def connect(folder: str | Path, *, create: bool = True) -> sqlite3.Connection:
    """A connection to `folder`/vault.sqlite in WAL mode with durable commits, its schema checked or created.

    Raises InputError when the file is no vault, is damaged or was made by a newer Eyrie; MissingError when it
    cannot be written.
    """
    path = Path(folder) / FILE_NAME
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise InputError(f"{path}: no vault here; it is made by the first generate job")
        _check_header(path)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise MissingError(f"{path}: cannot be opened ({error.strerror}); make its folder writable and rerun") from None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _ensure_schema(connection, path)
        return connection
    except sqlite3.Error as error:
        raise explain(error, path) from None


def _check_header(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, "rb") as file:
        if file.read(16) != _SQLITE_HEADER:
            raise InputError(f"{path}: not a vault (no SQLite file); move it away or point `vault` elsewhere")


def _versions(connection: sqlite3.Connection) -> tuple[int, int]:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, connection.execute("PRAGMA user_version").fetchone()[0]


def _ensure_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Check the version, or create the tables; two jobs that start at once make one vault."""
    if _versions(connection) != (APPLICATION_ID, SCHEMA_VERSION):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            application, version = _versions(connection)
            empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            if empty and application == 0:
                for statement in _statements(SCHEMA):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif application != APPLICATION_ID:
                raise InputError(f"{path}: a database of another program, not a vault; point `vault` elsewhere")
            elif version > SCHEMA_VERSION:
                raise InputError(
                    f"{path}: a vault of schema {version}; this Eyrie knows schema {SCHEMA_VERSION}: upgrade Eyrie"
                )
            elif version < SCHEMA_VERSION:
                raise InputError(f"{path}: a vault of schema {version}, which no released Eyrie wrote")
            connection.execute("COMMIT")
        except BaseException:
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
