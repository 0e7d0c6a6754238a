"""The vault: admission, journal, group commits, and clear stops where it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.errors import EyrieError, InputError, MissingError
from eyrie.vault import Answer, Decision, Limits, Vault, Wanted, admission, ledger
from eyrie.vault.ddl import SCHEMA_VERSION
from eyrie.vault.money import decimal, dollars, microdollars
from eyrie.vault.opening import explain
from tests.vault.purchases import RICH, admit, answer, buy, identity, wanted


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with Vault(tmp_path / "vault") as opened:
        yield opened


def test_an_answer_is_found_by_its_identity_and_no_other(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    buy(vault, job, wanted())
    assert admit(vault, job, wanted()).decision is Decision.STORED
    assert vault.answer(identity()) is not None
    for other in ({"row": "b"}, {"turn": 1}, {"repetition": 1}, {"dataset": "e"}, {"model": "n"}):
        assert vault.answer(identity(**{"row": "a", **other})) is None


def test_a_reply_comes_back_byte_for_byte(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    entry = admit(vault, job, wanted()).entry
    raw = '{"x": "\u2028 \\ud83d \\u0000", "n": NaN}'.encode()
    vault.write(lambda c: ledger.finish(c, entry, answer(raw), Decimal(0)))
    stored = vault.answer(identity())
    assert stored is not None and stored.raw == raw and stored.reply["n"] is None


def test_sent_is_on_disk_before_the_caller_hears_of_it(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    entry = admit(vault, job, wanted()).entry
    other = sqlite3.connect(vault.path)
    assert other.execute("SELECT state, reserved FROM journal WHERE id = ?", (entry,)).fetchone() == ("sent", 100)
    other.close()


def test_answer_and_done_are_one_transaction(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    entry = admit(vault, job, wanted()).entry
    broken = Answer("", None, b"{}")  # type: ignore[arg-type]  # an answer without a verdict cannot be stored
    with pytest.raises(EyrieError):
        vault.write(lambda c: ledger.finish(c, entry, broken, Decimal("0.01")))
    assert vault.answer(identity()) is None
    assert vault.committed() == {"settled": 0, "reserved": 100, "unknown": 0}


def test_admission_counts_settled_unknown_and_reserved(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    limits = Limits(300)
    buy(vault, job, wanted("a"), "0.0001")
    lost = admit(vault, job, wanted("b"), limits).entry
    vault.write(lambda c: ledger.lose(c, lost, "gateway", "gone"))
    under_way = admit(vault, job, wanted("c"), limits)
    assert under_way.decision is Decision.SEND
    assert vault.committed() == {"settled": 100, "reserved": 100, "unknown": 100}
    assert admit(vault, job, wanted("d", reserve=1), limits).decision is Decision.WAIT
    vault.write(lambda c: ledger.fail(c, under_way.entry, Decimal(0), "gateway", "500"))
    assert admit(vault, job, wanted("d", reserve=100), limits).decision is Decision.SEND
    over = admit(vault, job, wanted("e", reserve=150), limits)
    assert over.decision is Decision.OVER and over.needed == 50


def test_an_account_budget_binds_all_its_runs(vault: Vault) -> None:
    one, two = vault.register("r1", "acc", "d"), vault.register("r2", "acc", "d")
    elsewhere = vault.register("r3", "other", "d")
    limits = Limits(10**9, account=150)
    assert admit(vault, one, wanted("a"), limits).decision is Decision.SEND
    assert admit(vault, two, wanted("b"), limits).decision is Decision.WAIT
    assert admit(vault, elsewhere, wanted("c"), limits).decision is Decision.SEND


def test_a_changed_request_is_kept_unless_bought_again(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    buy(vault, job, wanted(fingerprint="old"))
    assert admit(vault, job, wanted(fingerprint="new")).decision is Decision.STORED
    assert buy(vault, job, wanted(fingerprint="new", rebuy=True)).fingerprint == "new"
    kept = list(vault._rows("SELECT fingerprint, superseded FROM answers ORDER BY id"))
    assert [tuple(row) for row in kept] == [("old", 1), ("new", 0)]  # the old one is not thrown away


def test_an_identical_request_of_another_row_shares_the_answer(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    first = admit(vault, job, wanted("a", "same"))
    assert admit(vault, job, wanted("b", "same")).decision is Decision.BUSY
    vault.write(lambda c: ledger.finish(c, first.entry, answer(), Decimal("0.0001")))
    shared = admit(vault, job, wanted("b", "same"))
    assert shared.decision is Decision.STORED and shared.answer.shared and shared.answer.cost == 0
    assert vault.committed()["settled"] == 100


def test_attempts_are_counted_only_for_faults_of_the_row(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    for blame in ("gateway", "overload", "row", "gateway", "row"):
        entry = admit(vault, job, wanted()).entry
        vault.write(lambda c, e=entry, b=blame: ledger.fail(c, e, Decimal(0), b, "x"))
    assert admit(vault, job, wanted()).faults == 2


def test_a_rejected_row_stays_rejected_until_its_request_changes(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    entry = admit(vault, job, wanted()).entry
    vault.write(lambda c: ledger.fail(c, entry, Decimal(0), "permanent", "400"))
    vault.write(lambda c: ledger.reject(c, entry, Answer("", "invalid_request", None)))
    again = admit(vault, job, wanted())
    assert again.decision is Decision.STORED and not again.answer.is_data
    assert admit(vault, job, wanted(fingerprint="shorter")).decision is Decision.SEND


def test_what_a_killed_process_had_under_way_becomes_unknown(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from tests.vault.test_vault import *\n"
        "v = Vault(sys.argv[1]); job = v.register('r', 'acc', 'd')\n"
        "admit(v, job, wanted('paid')); admit(v, job, wanted('free', reserve=0)); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2], check=False)
    with Vault(tmp_path) as vault:
        assert vault.committed()["reserved"] == 100
        job = vault.register("r", "acc", "d")
        assert vault.committed() == {"settled": 0, "reserved": 0, "unknown": 100}
        states = dict(vault._rows("SELECT row, state FROM journal"))  # type: ignore[arg-type]
        assert states == {"paid": "unknown", "free": "failed"}
        again = admit(vault, job, Wanted(identity("paid"), "f-paid", b"built differently today", 100))
        assert again.decision is Decision.SEND and again.body == b'{"q":1}'  # byte-identical to what was lost
        assert len(again.lost) == 1


def test_what_a_living_process_has_under_way_is_left_alone(tmp_path: Path) -> None:
    with Vault(tmp_path) as one, Vault(tmp_path) as two:
        admit(one, one.register("r", "acc", "d"), wanted())
        two.register("r", "acc", "d")
        assert two.committed()["reserved"] == 100


def test_a_cached_reply_gives_the_lost_attempt_its_answer(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    lost = admit(vault, job, wanted()).entry
    vault.write(lambda c: ledger.lose(c, lost, "gateway", "cut", generation_id="gen-1"))
    entry = admit(vault, job, wanted()).entry
    vault.write(lambda c: ledger.recover(c, entry, answer(), Decimal("0.00005"), source="gen-1", free=Decimal(0)))
    assert vault.committed() == {"settled": 50, "reserved": 0, "unknown": 0}
    stored = vault.answer(identity())
    assert stored is not None and stored.cost == 50
    assert [r["state"] for r in vault._rows("SELECT state FROM journal ORDER BY id")] == ["done", "failed"]


def test_bytes_of_a_lost_request_are_kept_when_its_cost_becomes_known(vault: Vault) -> None:
    """The response cache knows the bytes that were sent, with a narrowed list of endpoints perhaps."""
    job = vault.register("r", "acc", "d")
    narrowed = replace(wanted(), body=b"one endpoint of two")
    lost = admit(vault, job, narrowed).entry
    vault.write(lambda c: ledger.lose(c, lost, "gateway", "cut", generation_id="gen-1"))
    vault.write(lambda c: ledger.settle(c, lost, Decimal("0.00005")))
    again = admit(vault, job, wanted())
    assert again.body == b"one endpoint of two" and again.lost == ()
    vault.write(lambda c: ledger.recover(c, again.entry, answer(), Decimal("0.00005"), source="gen-1", free=Decimal(0)))
    assert [r["state"] for r in vault._rows("SELECT state FROM journal ORDER BY id")] == ["done", "failed"]
    assert not list(vault._rows("SELECT 1 FROM journal WHERE body IS NOT NULL"))


def test_a_lost_request_is_not_asked_again_while_it_may_be_answered(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    lost = admit(vault, job, wanted()).entry
    vault.write(lambda c: ledger.lose(c, lost, "gateway", "cut"))
    early = admit(vault, job, replace(wanted(), answer_s=60.0))
    assert early.decision is Decision.EARLY and 50 < early.wait_s <= 60
    assert admit(vault, job, replace(wanted(), answer_s=0.0)).decision is Decision.SEND
    other = admit(vault, job, replace(wanted("b"), answer_s=60.0))
    assert other.decision is Decision.SEND


def test_many_writers_in_threads_and_processes_agree_on_the_sum(tmp_path: Path) -> None:
    with Vault(tmp_path) as one, Vault(tmp_path) as two:
        jobs = [(v, v.register("r", "acc", "d")) for v in (one, two)]

        def work(vault: Vault, job: int, name: str) -> None:
            for i in range(50):
                admission = admit(vault, job, wanted(f"{name}{i}"), Limits(10_000))
                if admission.decision is Decision.SEND:
                    vault.write(lambda c, e=admission.entry: ledger.finish(c, e, answer(), Decimal("0.0001")))

        threads = [threading.Thread(target=work, args=(*jobs[n % 2], f"t{n}-")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.committed() == {"settled": 10_000, "reserved": 0, "unknown": 0}
        assert one.check() == []


def test_commits_are_made_in_groups(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    before = vault._writer.commits
    futures = [vault._writer.submit(lambda c, i=i: admission.admit(c, job, wanted(f"r{i}"), RICH)) for i in range(500)]
    assert all(future.result().decision is Decision.SEND for future in futures)
    assert vault._writer.commits - before < 100


def test_the_journal_cannot_be_pruned(vault: Vault) -> None:
    admit(vault, vault.register("r", "acc", "d"), wanted())
    with pytest.raises(EyrieError, match="never pruned"):
        vault.write(lambda c: c.execute("DELETE FROM journal"))


def test_check_finds_totals_that_were_tampered_with(vault: Vault) -> None:
    buy(vault, vault.register("r", "acc", "d"), wanted())
    assert vault.check() == []
    vault.write(lambda c: c.execute("UPDATE totals SET settled = settled - 1"))
    assert vault.check() == ["totals of acc/r/d differ from the journal"]


def test_a_newer_schema_is_a_clear_stop(tmp_path: Path) -> None:
    Vault(tmp_path).close()
    raw = sqlite3.connect(tmp_path / "vault.sqlite")
    raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    with pytest.raises(InputError, match="upgrade Eyrie"):
        Vault(tmp_path)


def test_another_programs_file_is_a_clear_stop_and_left_as_it_is(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "vault.sqlite")
    raw.execute("CREATE TABLE theirs (x)")
    raw.close()
    with pytest.raises(InputError, match="another program"):
        Vault(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "vault.sqlite").write_text("my notes")
    with pytest.raises(InputError, match="not a vault"):
        Vault(other)
    assert (other / "vault.sqlite").read_text() == "my notes"


def test_a_damaged_file_is_a_clear_stop(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        for i in range(200):
            buy(vault, job, wanted(f"r{i}"))
    path = tmp_path / "vault.sqlite"
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = os.urandom(64)
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"), Vault(tmp_path) as vault:
        vault.index("m", "d")


def test_a_folder_that_cannot_be_written_is_a_clear_stop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingError, match="make its folder writable"):
        Vault(tmp_path / "file" / "vault")
    assert isinstance(explain(sqlite3.OperationalError("attempt to write a readonly database"), tmp_path), MissingError)


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights to meet a read-only file")
def test_a_read_only_vault_is_a_clear_stop(tmp_path: Path) -> None:
    Vault(tmp_path).close()
    os.chmod(tmp_path / "vault.sqlite", 0o444)
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and folder != Path("/tmp"):
            os.chmod(folder, 0o555 if folder == tmp_path else 0o755)
    child = os.fork()
    if child == 0:  # as nobody
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            with Vault(tmp_path) as vault:
                vault.register("r", "acc", "d")
        except MissingError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    os.chmod(tmp_path, 0o755)


def test_a_full_disk_is_a_clear_stop_and_loses_nothing(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        buy(vault, job, wanted("kept"))
        pages = next(vault._rows("PRAGMA page_count"))[0]
        vault._writer.submit(lambda c: c.execute("SELECT 1")).result()
        vault._writer._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(MissingError, match="free space"):
            for i in range(500):
                entry = admit(vault, job, wanted(f"r{i}")).entry
                vault.write(lambda c, e=entry: ledger.finish(c, e, answer(os.urandom(4000)), Decimal(0)))
    with Vault(tmp_path) as vault:
        assert vault.answer(identity("kept")) is not None and vault.check() == []


def test_money_is_booked_rounded_up_and_read_exactly() -> None:
    assert microdollars(Decimal("0.0000001")) == 1 and microdollars(Decimal("1.5")) == 1_500_000
    assert decimal(0.1) == Decimal("0.1") and decimal("1e-7") == Decimal("0.0000001")
    assert decimal(None) is decimal("x") is decimal(float("nan")) is decimal(True) is None
    assert dollars(12_340_000) == "$12.34" and dollars(7) == "$0.000007" and dollars(0) == "$0.00"


def test_every_commit_is_synced_to_disk(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        for connection in (vault._writer._connection, vault._reader):
            assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
            assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            assert 0 < connection.execute("PRAGMA journal_size_limit").fetchone()[0] <= 1 << 27


def test_one_failing_operation_leaves_its_neighbours_in_the_commit(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")

    def fails(_: sqlite3.Connection) -> None:
        raise KeyError("a defect")

    first, second = (lambda c, r=row: admission.admit(c, job, wanted(r), RICH) for row in "ab")
    futures = [vault._writer.submit(operation) for operation in (first, fails, second)]
    assert futures[0].result().decision is futures[2].result().decision is Decision.SEND
    with pytest.raises(KeyError):
        futures[1].result()
    assert vault.committed()["reserved"] == 200
