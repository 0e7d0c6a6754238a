"""How much a request holds, and by how much a budget can be passed."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eyrie.vault import Decision, Limits, Vault, Wanted, ledger
from eyrie.vault.reservation import ENOUGH, MILLIONTHS, Attempt, reserved, share_to_reserve
from tests.vault.purchases import admit, answer, hurry, identity, wanted


def costing(share: float, worst: int = 1000) -> Attempt:
    return Attempt(worst, int(share * worst))


def by_quantile(attempts: list[Attempt]) -> int:
    return share_to_reserve(attempts, by_quantile=True)


def test_the_worst_case_is_held_until_enough_answers_are_seen() -> None:
    few = [costing(0.1)] * (ENOUGH - 1)
    assert by_quantile(few) == MILLIONTHS
    assert by_quantile([*few, costing(0.1)]) == MILLIONTHS // 10
    assert share_to_reserve([costing(0.1)] * 1000, by_quantile=False) == MILLIONTHS


def test_a_high_quantile_of_the_costs_is_held() -> None:
    attempts = [costing(0.05 if i % 10 else 0.4) for i in range(1000)]  # every tenth is dear
    assert by_quantile(attempts) == 400_000
    attempts = [costing(0.05 if i % 50 else 0.4) for i in range(1000)]  # every fiftieth is
    assert by_quantile(attempts) == 50_000


def test_short_answers_that_come_back_first_do_not_lower_it() -> None:
    """2000 sent, a quarter of them back: those are the short ones, and they say nothing of the rest."""
    early = [costing(0.01) if i % 4 == 0 else Attempt(1000, None) for i in range(2000)]
    assert by_quantile(early) == MILLIONTHS
    settled = [costing(0.01) if i % 4 == 0 else costing(0.2) for i in range(1000)]
    assert by_quantile(settled + early) == 200_000


def test_an_answer_dearer_than_its_worst_case_raises_what_is_held() -> None:
    assert share_to_reserve([costing(0.1), costing(1.2)], by_quantile=False) == 1_200_000


@given(st.integers(1, 10**9), st.integers(1, 2 * MILLIONTHS))
def test_what_is_not_free_holds_something_and_never_too_little(worst: int, share: int) -> None:
    held = reserved(worst, share)
    assert held >= 1 and held * MILLIONTHS >= worst * share


def run_out_of_money(vault: Vault, quantile: bool, budget: int, costs: list[int], worst: int, width: int) -> int:
    """Buy until the budget is over, `width` at a time, each at its cost; returns what was billed at the moment when
    all that is under way has come back at its worst case."""
    hurry(vault)
    job = vault.register("r", "acc", "d")
    under_way: list[int] = []
    for number, cost in enumerate(costs):
        if number % 50 == 0:
            share = share_to_reserve(vault.attempts("m", "d", 4000), by_quantile=quantile)
        want = Wanted(identity(f"r{number}"), f"f{number}", b"{}", reserved(worst, share), worst=worst)
        admission = admit(vault, job, want, Limits(budget))
        if admission.decision is not Decision.SEND:
            break
        under_way.append(admission.entry)
        if len(under_way) == width:
            entry = under_way.pop(0)
            vault.write(lambda c, e=entry, k=cost: ledger.finish(c, e, answer(), Decimal(k) / 10**6))
    exposure = sum(
        max(row["worst"] - row["reserved"], 0) for row in vault._rows("SELECT * FROM journal WHERE state = 'sent'")
    )
    for entry in under_way:
        vault.write(lambda c, e=entry: ledger.finish(c, e, answer(), Decimal(worst) / 10**6))
    billed = vault.committed()["settled"]
    assert billed <= budget + exposure  # the bound that admission.admit states
    return billed


def test_with_worst_cases_held_the_budget_is_never_passed_whatever_answers_cost(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        billed = run_out_of_money(vault, False, 50_000, [1000] * 500, worst=1000, width=20)
    assert billed == 50_000


def test_with_a_quantile_held_more_is_under_way_and_the_overrun_has_its_bound(tmp_path: Path) -> None:
    dice = random.Random(1)
    costs = [dice.choice((50, 80, 120)) for _ in range(1500)]
    with Vault(tmp_path) as vault:
        billed = run_out_of_money(vault, True, 60_000, costs, worst=1000, width=20)
        rows = list(vault._rows("SELECT reserved FROM journal ORDER BY id"))
    assert [row[0] for row in rows[:ENOUGH]] == [1000] * ENOUGH and rows[-1][0] == 120
    assert 60_000 < billed <= 60_000 + 19 * (1000 - 120)  # all 19 others that were under way ran to their limits


def test_one_at_a_time_never_passes_the_budget_even_with_a_quantile(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        billed = run_out_of_money(vault, True, 60_000, [100] * 1500, worst=1000, width=1)
    assert 60_000 - 1000 <= billed <= 60_000


def test_a_lost_attempt_holds_its_worst_case_and_a_killed_one_what_it_held(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        timed_out = admit(vault, job, Wanted(identity("a"), "f-a", b"{}", 100, worst=1000)).entry
        admit(vault, job, Wanted(identity("b"), "f-b", b"{}", 100, worst=1000))
        vault.write(lambda c: ledger.lose(c, timed_out, "gateway", "ReadTimeout"))
        vault.end(job)
        assert vault.committed() == {"settled": 0, "reserved": 0, "unknown": 1100}


def test_each_budget_binds_by_itself(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        other = vault.register("r", "acc", "e")
        assert admit(vault, job, wanted("a"), Limits(10**9, dataset=150)).decision is Decision.SEND
        refused = admit(vault, job, wanted("b"), Limits(10**9, dataset=150))
        assert (refused.decision, refused.scope) == (Decision.WAIT, "dataset")
        elsewhere = Wanted(identity("c", dataset="e"), "f-c", b"{}", 100)
        assert admit(vault, other, elsewhere, Limits(10**9, dataset=150)).decision is Decision.SEND
        over = admit(vault, job, wanted("d", reserve=151), Limits(10**9, dataset=150))
        assert (over.decision, over.scope, over.needed) == (Decision.OVER, "dataset", 1)
        assert admit(vault, job, wanted("free", reserve=0), Limits(0)).decision is Decision.SEND
