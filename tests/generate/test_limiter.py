"""The limiter on a clock of its own, against gateways that take only so much."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from eyrie.generate.limiter import CUT, ROUND_S, SPREAD, START, Limiter

STEP_S = 0.1
REFUSAL_S = 0.3


class Traffic:
    """2000 slots of one job that always has rows; answers are log-normal with a median of 60 s."""

    def __init__(self, capacity: Callable[[float], float], *, unlucky: float = 0.0, retry_after: float | None = None):
        self.limiter = Limiter(2000, random=random.Random(1))
        self.capacity, self.unlucky, self.retry_after = capacity, unlucky, retry_after
        self.random = random.Random(2)
        self.now, self.refused, self.served = 0.0, 0, 0.0
        self.answers: list[float] = []
        self.refusals: list[tuple[float, float]] = []

    @property
    def busy(self) -> int:
        return len(self.answers) + len(self.refusals)

    def run(self, until: float) -> None:
        limiter, due = self.limiter, self.now
        while self.now < until:
            while self.answers and self.answers[0] <= self.now:
                heapq.heappop(self.answers)
                limiter.success(self.busy + 1, 2000)
            while self.refusals and self.refusals[0][0] <= self.now:
                limiter.overload(self.now, self.retry_after, self.refusals.pop(0)[1], self.busy + 1, 2000)
                self.refused += 1
            limiter.tick(self.now, self.busy, 2000)
            due = max(due, self.now - STEP_S)
            for _ in range(int(100 * STEP_S)):  # new connections
                if self.busy >= limiter.allowed(self.now, 2000) or due > self.now:
                    break
                due += limiter.interval(self.now, 2000)
                self._send()
            self.served += len(self.answers) * STEP_S
            self.now += STEP_S

    def _send(self) -> None:
        self.limiter.start()
        if len(self.answers) >= self.capacity(self.now) or self.random.random() < self.unlucky:
            self.refusals.append((self.now + REFUSAL_S, self.now))
        else:
            heapq.heappush(self.answers, self.now + self.random.lognormvariate(4.094, 0.692))


def test_two_thousand_are_in_flight_within_half_a_minute_although_answers_take_one() -> None:
    traffic = Traffic(lambda now: 2000)
    traffic.run(5.0)
    assert traffic.busy < 4 * START  # it starts low
    traffic.run(30.0)
    assert traffic.busy > 1980


def test_a_gateway_that_takes_half_is_kept_busy_and_hardly_bothered() -> None:
    traffic = Traffic(lambda now: 1000)
    traffic.run(600.0)
    assert traffic.served > 0.92 * 1000 * 600
    assert traffic.refused < 5 * 600 and traffic.limiter.limit < 1300


def test_a_storm_cuts_the_limit_and_calm_brings_it_back_within_two_minutes() -> None:
    traffic = Traffic(lambda now: 0 if 200 < now < 320 else 2000)
    traffic.run(320.0)
    assert traffic.limiter.limit < 1000 and traffic.busy < 1000
    traffic.run(440.0)
    assert traffic.busy > 1900


def test_some_refusals_whatever_is_sent_do_not_starve_the_run() -> None:
    traffic = Traffic(lambda now: 2000, unlucky=0.03)
    traffic.run(300.0)
    assert traffic.refused > 50 and traffic.busy > 1900


def test_refusals_of_what_was_sent_before_a_cut_cut_nothing_again() -> None:
    limiter = Limiter(1000, 500.0)
    for _ in range(200):  # a storm on 500 requests that went out together
        limiter.overload(100.0, None, sent_at=99.0, busy=500, leased=1000)
    assert limiter.cuts == 1 and limiter.limit == pytest.approx(500 * (1 - 7 / 64), rel=0.2)
    assert limiter.limit >= 500 * CUT


def test_everybody_waits_as_long_as_the_gateway_asked_and_comes_back_one_by_one() -> None:
    limiter = Limiter(100, 50.0)
    limiter.overload(10.0, 7.0, sent_at=9.0, busy=50, leased=100)
    assert limiter.allowed(16.9, 100) == 0
    back = 10.0 + 7.0 * (1 + SPREAD)
    assert limiter.allowed(back, 100) > 0
    assert limiter.interval(limiter.ready_at, 100) > 0 == limiter.interval(back + 10, 100)
    limiter.overload(11.0, 1.0, sent_at=9.0, busy=50, leased=100)  # a shorter one does not shorten it
    assert limiter.allowed(16.9, 100) == 0


def test_cool_downs_differ_between_jobs_and_grow_while_all_is_refused() -> None:
    def waits(seed: int) -> list[float]:
        limiter, now, found = Limiter(2000, 2000.0, random=random.Random(seed)), 0.0, []
        for _ in range(12):
            for _ in range(40):
                limiter.start()
                limiter.overload(now + 1, None, sent_at=now, busy=40, leased=2000)
            found.append(max(0.0, limiter.ready_at - now - 1))
            now = max(now + 1 + ROUND_S, limiter.ready_at + 0.1)
        return found

    first, second = waits(1), waits(2)
    assert first != second
    assert max(first[6:] + second[6:]) > 5 > max(first[:2] + second[:2])
    assert max(first + second) <= 30


def test_it_never_freezes_and_a_job_keeps_one_slot() -> None:
    limiter = Limiter(2000, 64.0)
    for second in range(0, 4000, 4):
        limiter.overload(float(second), None, sent_at=second - 0.5, busy=1, leased=250)
    assert limiter.allowed(10_000.0, 250) == 1 and limiter.limit == 1


def test_an_idle_limiter_does_not_grow() -> None:
    limiter = Limiter(1000, 100.0)
    for second in range(100):
        limiter.success(busy=3, leased=1000)
        limiter.tick(float(second), busy=3, leased=1000)
    assert limiter.limit == 100


def test_eight_jobs_start_as_gently_as_one() -> None:
    assert 8 * Limiter(2000).allowed(0.0, 250) <= START


def test_a_gateway_where_most_fails_is_asked_ever_more_seldom_and_a_few_failures_change_nothing() -> None:
    limiter = Limiter(2000, 2000.0)
    for number in range(1000):
        limiter.start()
        if number % 50 == 0:
            limiter.failure(number / 30, sent_at=number / 30 - 1, busy=2000, leased=2000)
    assert limiter.limit == 2000 and limiter.cuts == 0
    for number in range(1000):
        limiter.start()
        limiter.failure(100 + number / 10, sent_at=99 + number / 10, busy=2000, leased=2000)
    assert limiter.limit < 500 and limiter.ready_at > 100
