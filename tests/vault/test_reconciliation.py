"""The gateway's own figure settles what was lost, and never at less than it cost."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.vault import Vault, ledger, reconciliation
from eyrie.vault.reconciliation import Difference
from tests.vault.purchases import admit, answer, buy, wanted

KEY = "aaaa0001"


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with Vault(tmp_path / "vault") as opened:
        yield opened


def begin(vault: Vault, job: int, lag: float = 0, key: str = KEY) -> int | None:
    return vault.write(lambda c: reconciliation.begin(c, "acc", job, key, vault.process, lag))


def read(vault: Vault, job: int, usage: str, key: str = KEY) -> tuple[Difference | None, int]:
    number = begin(vault, job, key=key)
    assert number is not None
    return vault.write(lambda c: reconciliation.complete(c, number, Decimal(usage)))


def lose(vault: Vault, job: int, row: str, worst: int = 100) -> int:
    entry = admit(vault, job, wanted(row, reserve=worst)).entry
    vault.write(lambda c: ledger.lose(c, entry, "gateway", "cut"))
    return entry


def costs(vault: Vault) -> list[tuple[str, int]]:
    return [(r["state"], r["cost"]) for r in vault.query("SELECT state, cost FROM journal ORDER BY id")]


def test_what_was_lost_is_settled_at_what_the_usage_rose_by(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    assert read(vault, job, "5.0") == (None, 0)  # the first reading: nothing to compare with
    buy(vault, job, wanted("a"), "0.00005")
    lose(vault, job, "b", worst=300)
    lose(vault, job, "c", worst=100)
    difference, settled = read(vault, job, "5.00009")
    assert settled == 2 and difference is not None and difference.gap == Decimal("0.00004")
    assert costs(vault) == [("done", 50), ("failed", 30), ("failed", 10)]  # by their worst cases
    assert vault.committed() == {"settled": 90, "reserved": 0, "unknown": 0} and vault.check() == []


def test_what_was_never_billed_is_settled_at_nothing(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    read(vault, job, "5.0")
    lose(vault, job, "b")
    assert read(vault, job, "5.0")[1] == 1
    assert vault.committed() == {"settled": 0, "reserved": 0, "unknown": 0}
    assert admit(vault, job, wanted("b")).lost == ()  # and it is asked again like any other


def test_somebody_elses_use_of_the_key_settles_nothing(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    read(vault, job, "5.0")
    lose(vault, job, "b", worst=100)
    difference, settled = read(vault, job, "5.5")
    assert settled == 0 and difference is not None and not difference.explained
    assert vault.committed()["unknown"] == 100


def test_a_figure_that_lags_settles_nothing(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    read(vault, job, "5.0")
    buy(vault, job, wanted("a"), "0.5")
    lose(vault, job, "b")
    difference, settled = read(vault, job, "5.2")
    assert settled == 0 and difference is not None and difference.gap == Decimal("-0.3")


def test_the_rise_is_counted_from_a_reading_without_lost_requests(vault: Vault) -> None:
    """What is settled by its id meanwhile may have been billed before or after a reading: only clean ones are bases."""
    job = vault.register("r", "acc", "d")
    read(vault, job, "1.0")
    first = lose(vault, job, "a", worst=1_000_000)
    assert read(vault, job, "9.0")[1] == 0  # more than it can have cost
    vault.write(lambda c: ledger.settle(c, first, Decimal("0.2")))
    difference, _ = read(vault, job, "1.2")
    assert difference == Difference(Decimal("0.2"), Decimal("0.2"), Decimal(0)) and difference.explained


def test_another_key_of_the_account_is_another_figure(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    read(vault, job, "5.0")
    lose(vault, job, "b")
    assert read(vault, job, "0.0", key="bbbb0002") == (None, 0)
    assert vault.committed()["unknown"] == 100


def test_no_reading_while_anything_is_under_way_or_was_a_moment_ago(vault: Vault) -> None:
    first = vault.register("r", "acc", "d")
    entry = admit(vault, first, wanted("a")).entry
    assert begin(vault, first) is None  # its own request is under way
    vault.write(lambda c: ledger.finish(c, entry, answer(), Decimal(0)))
    second = vault.register("r", "acc", "e")
    assert begin(vault, second) is None  # another job lives
    vault.end(first)
    assert begin(vault, second, lag=60) is None  # what it sent may not be in the figure yet
    assert begin(vault, second, lag=0) is not None


def test_jobs_that_start_during_a_reading_wait_for_it(vault: Vault) -> None:
    first = vault.register("r", "acc", "d")
    number = begin(vault, first)
    assert number is not None
    second = vault.register("r", "acc", "e")

    def waits() -> bool:
        return vault.write(lambda c: reconciliation.pending(c, "acc", second))

    assert waits()
    vault.write(lambda c: reconciliation.complete(c, number, Decimal(1)))
    assert not waits()
    vault.end(second)
    third = begin(vault, first)
    assert third is not None
    vault.end(first)  # killed in the middle of its reading: nobody waits for ever
    assert not waits()


def test_shares_of_a_sum_add_up_to_the_micro_dollar(vault: Vault) -> None:
    job = vault.register("r", "acc", "d")
    read(vault, job, "0")
    for number in range(7):
        lose(vault, job, f"r{number}", worst=1000 + number)
    read(vault, job, "0.001")
    billed = sum(Decimal(row["billed"]) for row in vault.query("SELECT billed FROM journal"))
    assert billed == Decimal("0.001")
    assert 1000 <= vault.committed()["settled"] <= 1007  # each rounded up


def test_an_answer_that_comes_back_after_all_leaves_the_rest_of_the_sum_to_the_others(vault: Vault) -> None:
    """The sum is the gateway's word; the shares are guesses until one is known."""
    job = vault.register("r", "acc", "d")
    read(vault, job, "0")
    for row, worst in (("a", 300), ("b", 100)):
        lose(vault, job, row, worst)
    read(vault, job, "0.00004")  # 40: guessed 30 and 10, in truth 10 and 30
    entry = admit(vault, job, wanted("a")).entry
    came = answer(generation="gen-old")
    vault.write(lambda c: ledger.recover(c, entry, came, Decimal("0.00001"), source="gen-old", free=Decimal(0)))
    assert costs(vault) == [("done", 10), ("failed", 30), ("failed", 0)]
    assert vault.check() == []
