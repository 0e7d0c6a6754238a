"""A vault that one process holds open stays whole while others come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from eyrie.vault import Vault

VISIT = "import sys; from eyrie.vault import Vault; Vault(sys.argv[1]).close()"


def test_a_process_that_leaves_last_does_not_take_the_log_from_one_that_is_still_there(tmp_path: Path) -> None:
    """SQLite's locks are the process's own: reading the file beside SQLite and closing it gives them up in silence, and
    the next process to leave deletes the write-ahead log under the commits of this one."""
    log = tmp_path / "vault.sqlite-wal"
    with Vault(tmp_path) as vault:
        for number in range(3):
            vault.register("run", "account", f"before-{number}")
            inode = os.stat(log).st_ino
            subprocess.run([sys.executable, "-c", VISIT, str(tmp_path)], check=True, env={**os.environ})
            assert log.exists() and os.stat(log).st_ino == inode
            vault.register("run", "account", f"after-{number}")
    with Vault(tmp_path) as vault:
        assert vault.check() == []
        names = [row[0] for row in vault._rows("SELECT dataset FROM jobs ORDER BY id")]
    assert names == [f"{when}-{number}" for number in range(3) for when in ("before", "after")]
