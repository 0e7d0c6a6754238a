"""`eyrie vault`: figures, export and proof, beside running jobs and on disks that cannot be written."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie import cli
from eyrie.errors import ExitCode, InputError
from eyrie.files import read_jsonl_zst
from eyrie.vault import Answer, Reader, Usage, Vault, Wanted, admission, contents, ledger
from tests.vault.purchases import RICH, admit, answer, buy, hurry, identity, wanted


def fill(folder: Path) -> None:
    """Two bought answers, one shared, one rejected row, one attempt lost and one under way."""
    with Vault(folder) as vault:
        job = vault.register("kimi", "acc", "d")
        buy(vault, job, wanted("a", "same"), "0.00005")
        admit(vault, job, wanted("b", "same"))
        buy(vault, job, wanted("c"), "0.00007")
        entry = admit(vault, job, wanted("bad")).entry
        vault.write(lambda c: ledger.fail(c, entry, Decimal("0.00001"), "permanent", "400", provider="Beta"))
        vault.write(lambda c: ledger.reject(c, entry, Answer("", "moderated", None)))
        lost = admit(vault, job, wanted("lost")).entry
        vault.write(lambda c: ledger.lose(c, lost, "gateway", "cut"))
        admit(vault, job, Wanted(identity("open"), "f-open", b"{}", 30, worst=100))


def figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    assert cli.main(["vault", "--vault", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_says_what_is_there_and_what_it_cost(tmp_path: Path, capsys) -> None:
    fill(tmp_path)
    found = figures(tmp_path, capsys)
    assert found["accounts"] == [{
        "account": "acc", "run": "kimi", "settled": 130, "reserved": 30, "unknown": 100, "under_way": 1, "lost": 1,
        "exposure": 70,
    }]  # fmt: skip
    (dataset,) = found["datasets"]
    assert (dataset["answers"], dataset["shared"], dataset["rejected"], dataset["attempts"]) == (3, 1, 1, 5)
    assert (dataset["billed"], dataset["wasted"], dataset["completion_tokens"]) == (130, 10, 15)
    assert found["providers"] == [
        {"model": "m", "provider": "Alpha", "answers": 2, "completion_tokens": 10, "cost": 120, "failed": 0}
    ]
    assert cli.main(["vault", "--vault", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "kimi" in text and "$0.00013" in text and "Alpha" in text and "exposure" in text


def test_answers_are_exported_with_their_replies(tmp_path: Path, capsys) -> None:
    fill(tmp_path / "vault")
    target = tmp_path / "out.jsonl.zst"
    assert cli.main(["vault", "--vault", str(tmp_path / "vault"), "--export", str(target)]) == 0
    rows = list(read_jsonl_zst(target))
    assert [(r["row"], r["verdict"], r["cost_microusd"], r["shared"]) for r in rows] == [
        ("a", "ok", 50, False), ("b", "ok", 0, True), ("c", "ok", 70, False), ("bad", "moderated", 0, False),
    ]  # fmt: skip
    assert rows[0]["reply"] == {} and rows[3]["reply"] is None and rows[0]["generation_id"] == "gen-1"
    capsys.readouterr()
    assert cli.main(["vault", "--vault", str(tmp_path / "vault"), "--export", "-", "--dataset", "none"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["vault", "--vault", str(tmp_path / "vault"), "--export", "x.csv"]) == ExitCode.USAGE


def test_it_works_beside_a_job_that_writes_and_the_log_stays_bounded(tmp_path: Path) -> None:
    text = os.urandom(3000).hex().encode()
    with Vault(tmp_path) as vault:
        hurry(vault)
        job = vault.register("r", "acc", "d")

        def put(number: int) -> None:
            def both(connection: sqlite3.Connection) -> None:
                entry = admission.admit(connection, job, wanted(f"r{number}"), RICH).entry
                stored = Answer("", "ok", b'{"t": "%s"}' % text, Usage(1, 1), "stop", "A", "m", f"g{number}")
                ledger.finish(connection, entry, stored, Decimal("0.00001"))

            vault.write(both)

        for number in range(300):
            put(number)
        stop = threading.Event()

        def export_slowly() -> None:
            with Reader(tmp_path) as reader:
                for _ in contents.export(reader):
                    if stop.wait(0.02):
                        return

        reading = threading.Thread(target=export_slowly)
        reading.start()
        for number in range(300, 1500):
            put(number)
        log = vault.path.with_name("vault.sqlite-wal").stat().st_size
        written = vault.path.stat().st_size
        stop.set()
        reading.join()
        assert written > 4.5e6 and log < 4.5e6


def test_two_commands_see_a_running_jobs_commits(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        buy(vault, job, wanted("a"))
        command = [sys.executable, "-m", "eyrie", "vault", "--vault", str(tmp_path), "--json"]
        seen = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert seen["datasets"][0]["answers"] == 1
        buy(vault, job, wanted("b"))  # and the job goes on


@pytest.fixture
def read_only(tmp_path: Path):
    """A folder on a disk of its own, and a function that makes it read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a disk needs root")
    yield folder, lambda: subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    subprocess.run(["umount", folder], check=True)


def test_it_works_on_a_read_only_disk(read_only, capsys) -> None:
    folder, lock = read_only
    fill(folder)
    lock()
    assert figures(folder, capsys)["datasets"][0]["answers"] == 3
    assert cli.main(["vault", "--vault", str(folder), "--verify"]) == 0


def test_a_log_that_a_crash_left_is_read_on_a_read_only_disk(read_only, capsys) -> None:
    folder, lock = read_only
    script = (
        "import os, sys; from tests.vault.purchases import *\n"
        "v = Vault(sys.argv[1]); job = v.register('r', 'acc', 'd'); buy(v, job, wanted('a')); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], cwd=Path(__file__).parents[2], check=False)
    assert (folder / "vault.sqlite-wal").stat().st_size > 0
    (folder / "vault.sqlite-shm").unlink()  # a copy of a disk may lack it
    lock()
    assert figures(folder, capsys)["datasets"][0]["answers"] == 1


def test_a_missing_vault_an_empty_file_and_somebody_elses_are_clear_stops(tmp_path: Path, capsys) -> None:
    assert cli.main(["vault", "--vault", str(tmp_path)]) == ExitCode.USAGE
    assert "no vault here" in capsys.readouterr().err
    (tmp_path / "vault.sqlite").touch()
    with pytest.raises(InputError, match="empty file"):
        Reader(tmp_path)
    (tmp_path / "vault.sqlite").write_text("my notes")
    with pytest.raises(InputError, match="not a vault"):
        Reader(tmp_path)


def problems(folder: Path, change: str) -> str:
    """What --verify says after the SQL in `change`."""
    raw = sqlite3.connect(folder / "vault.sqlite")
    raw.executescript(change)
    raw.close()
    done = subprocess.run(
        [sys.executable, "-m", "eyrie", "vault", "--vault", str(folder), "--verify"], capture_output=True, text=True
    )
    assert done.returncode == ExitCode.USAGE and "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "change, finding",
    [
        ("UPDATE answers SET reply = x'0102' WHERE row = 'a'", "row a, turn 0, repetition 0: its reply is damaged"),
        ("UPDATE answers SET cost = 1 WHERE row = 'c'", "costs 1 micro-dollars, its journal entry 70"),
        ("UPDATE answers SET journal = 4 WHERE row = 'c'", "its journal entry is another request's"),
        ("UPDATE answers SET journal = NULL WHERE row = 'c'", "no journal entry says who paid"),
        ("DELETE FROM answers WHERE row = 'c'", "is done, but its answer is not there"),
        ("UPDATE totals SET settled = 0", "totals of acc/kimi/d differ from the journal"),
        ("UPDATE journal SET billed = '1' WHERE row = 'c'", "books 70 micro-dollars for $1"),
        ("UPDATE answers SET shared_from = 77 WHERE row = 'b'", "foreign key of answers"),
    ],
)  # fmt: skip
def test_verify_finds(tmp_path: Path, change: str, finding: str) -> None:
    fill(tmp_path)
    assert finding in problems(tmp_path, change)


def test_a_damaged_reply_stops_a_job_with_its_row_named(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        buy(vault, vault.register("r", "acc", "d"), wanted("a"))
        reply = vault.query("SELECT reply FROM answers")[0][0]
        broken = reply[:-1] + bytes([reply[-1] ^ 1])  # one bit, in the checksum
        vault.write(lambda c: c.execute("UPDATE answers SET reply = ?", (broken,)))
        with pytest.raises(InputError, match="reply to row a of d"):
            vault.answer(identity("a"))


def test_a_large_vault_is_described_in_a_moment(tmp_path: Path) -> None:
    """The figures come from indices: the time must not follow the size of the replies."""
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")

        def many(connection: sqlite3.Connection, start: int) -> None:
            for number in range(start, start + 500):
                entry = admission.admit(connection, job, wanted(f"r{number}"), RICH).entry
                ledger.finish(connection, entry, answer(os.urandom(20_000)), Decimal("0.00001"))

        for start in range(0, 1000, 500):
            vault.write(lambda c, s=start: many(c, s))
        plan = vault.query(
            "EXPLAIN QUERY PLAN SELECT row, verdict, completion_tokens FROM answers INDEXED BY answers_words "
            "WHERE superseded = 0 AND model = 'm' AND dataset = 'd'"
        )
        assert "COVERING INDEX answers_words" in plan[0]["detail"]
    began = time.process_time()
    with Reader(tmp_path) as reader:
        assert contents.everything(reader)["datasets"][0]["answers"] == 1000
    assert time.process_time() - began < 1
