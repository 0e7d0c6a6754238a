"""Slots shared by jobs: fair, work-conserving, never more than there are."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eyrie.vault import Limits, Vault, admission, leases, ledger
from eyrie.vault.leases import fair_shares
from eyrie.vault.process import Beat, Process
from tests.vault.purchases import answer, wanted


@given(st.lists(st.integers(0, 50), max_size=10), st.integers(0, 100))
def test_shares_waste_no_slot_and_favour_nobody(wants: list[int], total: int) -> None:
    shares = fair_shares(wants, total)
    assert sum(shares) == min(total, sum(wants))
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    starved = [share for share, want in zip(shares, wants, strict=True) if share < want]
    assert not starved or max(shares) <= max(starved) + 1  # nobody has more than the hungry, but for the remainder


def renew(vault: Vault, job: int, wanted: int, busy: int = 0, me: Process | None = None) -> int:
    return vault.write(lambda c: leases.renew(c, job, me or vault.process, wanted=wanted, busy=busy, in_flight=100))


def test_a_job_alone_has_all_slots_and_gives_half_to_a_second_as_its_requests_end(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        one, two = vault.register("r", "acc", "d1"), vault.register("r", "acc", "d2")
        assert renew(vault, one, 500) == 100
        assert renew(vault, two, 500) == 0  # all taken until the first one shrinks
        assert renew(vault, one, 500, busy=80) == 80
        assert renew(vault, two, 500) == 20
        assert renew(vault, one, 500, busy=40) == 50
        assert renew(vault, two, 500, busy=20) == 50


def test_the_tail_of_one_job_leaves_its_slots_to_the_others(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        one, two = vault.register("r", "acc", "d1"), vault.register("r", "acc", "d2")
        renew(vault, one, 3, busy=3)
        assert renew(vault, two, 500) == 97


def test_accounts_do_not_share(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        one, two = vault.register("r", "a", "d1"), vault.register("r", "b", "d2")
        assert renew(vault, one, 500) == renew(vault, two, 500) == 100


def test_a_dead_jobs_slots_come_back(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        here = vault.process
        ghost = Process(here.machine, here.boot, os.getpid(), "12345")  # our pid, another process's start
        dead = vault.write(lambda c: leases.register(c, "r", "acc", "d1", ghost))
        vault.write(lambda c: c.execute("UPDATE jobs SET slots = 100, wanted = 100 WHERE id = ?", (dead,)))
        assert renew(vault, vault.register("r", "acc", "d2"), 500) == 100


def test_a_process_is_told_from_another_boot_and_another_machine_by_more_than_its_pid() -> None:
    here, long_ago, now = Process.current(), Beat(0, 0), Beat(1e9, 1e6)
    assert here.alive(long_ago, now, here)  # it runs, however old its heartbeat (a stopped job)
    assert not Process(here.machine, "another boot", here.pid, here.started).alive(now, now, here)
    assert not Process(here.machine, here.boot, here.pid, "12345").alive(now, now, here)  # the pid is somebody else's
    far = Process("another machine", "another boot", here.pid, here.started)
    assert far.alive(Beat(950, 0), Beat(1000, 0), here) and not far.alive(Beat(900, 0), Beat(1000, 0), here)
    assert not far.alive(Beat(5000, 0), Beat(1000, 0), here)  # its clock was wrong, or ours was set back: no lease


def test_a_clock_that_is_set_neither_kills_a_job_in_another_container_nor_keeps_it_alive() -> None:
    here = Process.current()
    neighbour = Process("another container", here.boot, 1, "1")
    assert neighbour.alive(Beat(1000, 500), Beat(1000 + 7200, 510), here)
    assert not neighbour.alive(Beat(1000, 500), Beat(1000, 600), here)


def test_a_job_taken_for_dead_lives_again_and_its_answer_still_counts(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        renew(vault, job, 50)
        entry = vault.write(lambda c: admission.admit(c, job, wanted(), Limits(10**9))).entry
        vault.write(lambda c: leases.end(c, job))  # another container's verdict after a long standstill
        assert vault.committed()["unknown"] == 100
        assert renew(vault, job, 50, busy=1) == 50
        vault.write(lambda c: ledger.finish(c, entry, answer(), Decimal("0.00004")))
        assert vault.committed() == {"settled": 40, "reserved": 0, "unknown": 0} and vault.check() == []


def test_a_renewal_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    with Vault(tmp_path) as vault:
        job = vault.register("r", "acc", "d")
        renew(vault, job, 50)
        log = vault.path.with_name("vault.sqlite-wal")
        before, began = log.stat().st_size, time.monotonic()
        for _ in range(50):
            assert renew(vault, job, 50) == 50
        beats = int(time.monotonic() - began) + 1
        assert log.stat().st_size - before <= beats * 2 * 4200  # a heartbeat's page or two a second
