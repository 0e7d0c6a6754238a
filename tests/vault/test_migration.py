"""A vault of schema 1 becomes one of schema 2 with every answer and every cent."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.errors import InputError
from eyrie.vault import Decision, Limits, Reader, Vault, Wanted, ledger
from eyrie.vault.ddl import APPLICATION_ID, SCHEMA_VERSION
from eyrie.vault.ledger import compress
from tests.vault.purchases import admit, answer, buy, identity, wanted


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with a vault as schema 1 wrote it: one answer done, one attempt lost, one failed, one under way."""
    database = sqlite3.connect(tmp_path / "vault.sqlite")
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript((Path(__file__).parent / "schema_1.sql").read_text())
    database.execute("INSERT INTO jobs VALUES (1, 'r', 'acc', 'd', 'elsewhere', 'boot', 1, '1', 0, 0, 0, 1)")
    for row, state, reserved, cost in (
        ("done", "done", 100, 40), ("lost", "unknown", 90, 0), ("failed", "failed", 100, 7), ("sent", "sent", 80, 0),
    ):  # fmt: skip
        database.execute(
            "INSERT INTO journal (job, run, account, model, dataset, row, turn, repetition, attempt, fingerprint, "
            "state, reserved, cost, billed, body, sent_at) "
            "VALUES (1, 'r', 'acc', 'm', 'd', ?, 0, 0, 1, ?, ?, ?, ?, ?, ?, 0)",
            (row, f"f-{row}", state, reserved, cost, f"0.0000{cost:02}" if cost else None,
             compress(b'{"q":1}') if state in ("unknown", "sent") else None),
        )  # fmt: skip
    database.execute(
        "INSERT INTO answers VALUES (NULL, 'm', 'd', 'done', 0, 0, 'f-done', 'ok', ?, 'stop', 'Alpha', 'm', 'gen-1', "
        "3, 5, 0, 0, 40, 1, NULL, 0, 0)",
        (compress(b'{"text": "kept"}'),),
    )
    database.commit()
    database.close()
    return tmp_path


def test_a_vault_of_schema_1_keeps_every_answer_and_every_cent(old: Path) -> None:
    with Vault(old) as vault:
        assert next(vault._rows("PRAGMA user_version"))[0] == SCHEMA_VERSION
        assert vault.check() == []
        assert vault.committed() == {"settled": 47, "reserved": 80, "unknown": 90}
        assert vault.committed(run="r", dataset="d") == vault.committed(account="acc")
        kept = vault.answer(identity("done"))
        assert kept is not None and kept.reply == {"text": "kept"} and kept.cost == 40
        job = vault.register("r", "acc", "d")
        assert admit(vault, job, Wanted(identity("done"), "f-done", b"", 10)).decision is Decision.STORED
        again = admit(vault, job, wanted("lost"))
        assert again.decision is Decision.SEND and again.body == b'{"q":1}' and len(again.lost) == 1
        assert admit(vault, job, wanted("x", reserve=50), Limits(10**9, dataset=300)).decision is Decision.WAIT
        vault.write(lambda c: ledger.finish(c, again.entry, answer(), Decimal("0.00001")))
        buy(vault, job, wanted("new"))
        assert vault.check() == []


def test_two_jobs_that_start_at_once_migrate_it_once(old: Path) -> None:
    with Vault(old) as one, Vault(old) as two:
        assert one.committed() == two.committed()


def test_a_reader_leaves_an_old_vault_as_it_is(old: Path) -> None:
    before = (old / "vault.sqlite").read_bytes()
    with Reader(old) as reader:
        assert reader.committed()["settled"] == 47 and reader.check() == []
    assert (old / "vault.sqlite").read_bytes() == before


def test_a_migration_that_fails_leaves_the_old_vault(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eyrie.vault import ddl

    monkeypatch.setitem(ddl.MIGRATIONS, 1, ddl.MIGRATIONS[1] + "SELECT no_such_column FROM journal;\n")
    with pytest.raises(Exception, match="no_such_column"):
        Vault(old)
    database = sqlite3.connect(old / "vault.sqlite")
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    assert database.execute("SELECT count(*) FROM totals").fetchone() == (1,)
    database.close()


def test_a_schema_that_never_was_is_a_clear_stop(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "vault.sqlite")
    database.execute("CREATE TABLE journal (x)")
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.close()
    with pytest.raises(InputError, match="no released Eyrie"):
        Vault(tmp_path)
