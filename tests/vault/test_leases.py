"""Slots shared by jobs: fair, work-conserving, never more than there are."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eyrie.vault import Vault, leases
from eyrie.vault.leases import fair_shares
from eyrie.vault.process import Process


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
    here = Process.current()
    assert here.alive(heartbeat=0, now=1e9, here=here)  # it runs, however old its heartbeat (a stopped job)
    assert not Process(here.machine, "another boot", here.pid, here.started).alive(1e9, 1e9, here)
    far = Process("another machine", here.boot, here.pid, here.started)
    assert far.alive(heartbeat=950, now=1000, here=here) and not far.alive(heartbeat=900, now=1000, here=here)
