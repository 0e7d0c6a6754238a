"""Group commits: one thread owns the writing connection and commits whatever has queued up as one transaction.

While a commit waits for the disk, new operations queue; the next commit takes them all. So 2000 requests a second
need a few durable commits a second, and no caller hears of its operation before it is on disk.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from eyrie.vault.opening import FILE_NAME, connect, explain

GROUP = 512  # operations in one commit at most

Operation = Callable[[sqlite3.Connection], Any]


class Writer:
    """The single writing thread of this process. `submit` may be called from any thread."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / FILE_NAME
        self._connection = connect(folder)
        self._closed = False
        self._queue: queue.SimpleQueue[tuple[Operation, Future[Any]] | None] = queue.SimpleQueue()
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="vault-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> Future[Any]:
        """Queue `operation`; the future holds its result once the transaction with it is on disk.

        An operation that raises is rolled back alone; a failed commit fails all operations in it.
        """
        if self._closed:
            raise RuntimeError("the vault is closed")
        future: Future[Any] = Future()
        self._queue.put((operation, future))
        return future

    def close(self) -> None:
        """Commit what is queued and close the file."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            group = [self._queue.get()]
            while len(group) < GROUP:
                try:
                    group.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            closing = None in group
            self._commit([item for item in group if item is not None])
        self._connection.close()

    def _commit(self, group: list[tuple[Operation, Future[Any]]]) -> None:
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        if not group:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for operation, future in group:
                outcomes.append((future, *self._apply(operation)))
            self._connection.execute("COMMIT")
            self.commits += 1
        except sqlite3.Error as error:
            self._roll_back()
            failure = explain(error, self._path)
            outcomes = [(future, None, failure) for _, future in group]
        for future, result, problem in outcomes:
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def _apply(self, operation: Operation) -> tuple[Any, BaseException | None]:
        self._connection.execute("SAVEPOINT operation")
        try:
            result = operation(self._connection)
        except sqlite3.Error as error:
            if not self._connection.in_transaction:  # SQLite rolled everything back (disk full, I/O error)
                raise
            self._undo()
            return None, explain(error, self._path)
        except Exception as error:  # its caller's to handle, not this thread's to die of
            self._undo()
            return None, error
        self._connection.execute("RELEASE operation")
        return result, None

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:  # SQLite has rolled back by itself; the first error is the one to tell
            return

    def _undo(self) -> None:
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
