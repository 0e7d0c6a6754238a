"""The gate on trio's test clock: order, ramps, cool-downs, leases, breakers."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from eyrie.errors import ExitCode
from eyrie.gateway.clients import KEEPALIVE_S
from eyrie.generate.breaker import EVERYWHERE, FAULTS, OPEN_S, Breaker
from eyrie.generate.gate import RAMP_PER_S, Gate, Pass
from eyrie.generate.limiter import Limiter
from eyrie.generate.stop import Stopped, StopSign
from tests.generate.test_breaker import THREE, failed


class Crowd:
    """Many rows at one gate on a clock that jumps; each holds its slot for `hold_s`."""

    def __init__(self, gate: Gate, hold_s: float = 1e9) -> None:
        self.gate, self.hold_s = gate, hold_s
        self.admitted: list[tuple[float, int, Pass]] = []

    async def row(self, number: int) -> None:
        given = await self.gate.acquire((number,))
        self.admitted.append((trio.current_time(), number, given))
        await trio.sleep(self.hold_s)
        self.gate.release(given)

    def count(self, until: float) -> int:
        return sum(at <= until for at, _, _ in self.admitted)


def run(main) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def gate_of(ceiling: int, limit: float, leased: int, breaker: Breaker | None = None) -> Gate:
    gate = Gate(Limiter(ceiling, limit, random=random.Random(0)), StopSign(), breaker)
    gate.leased = leased
    return gate


def test_connections_are_opened_at_a_measured_pace() -> None:
    async def main() -> None:
        gate = gate_of(1000, 1000.0, 1000)
        crowd, start = Crowd(gate), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.pump)
            for number in range(1000):
                nursery.start_soon(crowd.row, number)
            await trio.sleep(5)
            assert 4 * RAMP_PER_S < crowd.count(start + 5) <= 5 * RAMP_PER_S + 20
            nursery.cancel_scope.cancel()

    run(main)


def test_a_job_with_an_eighth_of_the_slots_opens_an_eighth_of_the_connections() -> None:
    async def main() -> None:
        gate = gate_of(800, 800.0, 100)
        crowd, start = Crowd(gate), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.pump)
            for number in range(100):
                nursery.start_soon(crowd.row, number)
            await trio.sleep(4)
            assert crowd.count(start + 4) <= 4 * RAMP_PER_S / 8 + 4
            nursery.cancel_scope.cancel()

    run(main)


def test_warm_slots_need_no_ramp_and_slots_that_idled_do() -> None:
    async def main() -> None:
        gate = gate_of(500, 500.0, 500)
        first = Crowd(gate, hold_s=10.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.pump)
            for number in range(500):
                nursery.start_soon(first.row, number)
            await trio.sleep(9.9)
            second = Crowd(gate, hold_s=1.0)
            for number in range(500, 600):
                nursery.start_soon(second.row, number)
            await trio.sleep(1.2)
            assert len(second.admitted) >= 100  # at once, as slots come free
            await trio.sleep(10 + KEEPALIVE_S)
            third, start = Crowd(gate), trio.current_time()
            for number in range(600, 1100):
                nursery.start_soon(third.row, number)
            await trio.sleep(1.0)
            assert third.count(start + 1.0) <= RAMP_PER_S + 20
            nursery.cancel_scope.cancel()

    run(main)


def test_the_lowest_row_goes_first_and_one_that_gave_up_leaves_no_slot_behind() -> None:
    async def main() -> None:
        gate = gate_of(1, 1.0, 1)
        held = await gate.acquire((0,))
        crowd = Crowd(gate, hold_s=0.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.row, 9)
            nursery.start_soon(crowd.row, 4)
            with trio.move_on_after(1):
                await gate.acquire((1,))
            gate.release(held)
            await trio.sleep(1)
        assert [number for _, number, _ in crowd.admitted] == [4, 9]
        assert gate.busy == 0 and gate.wanted == 0

    run(main)


def test_after_a_cool_down_nobody_was_early_and_the_herd_comes_back_one_by_one() -> None:
    async def main() -> None:
        gate = gate_of(100, 100.0, 100)
        gate.limiter.slow_start = False
        crowd = Crowd(gate, hold_s=3.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.pump)
            for number in range(300):
                nursery.start_soon(crowd.row, number)
            await trio.sleep(2.9)
            told = trio.current_time()
            gate.limiter.overload(told, 10.0, told - 1, gate.busy, gate.leased)
            before = len(crowd.admitted)
            await trio.sleep(20)
            later = [at for at, _, _ in crowd.admitted[before:]]
            assert min(later) >= told + 10.0
            assert sum(at < min(later) + 0.5 for at in later) < 30
            nursery.cancel_scope.cancel()

    run(main)


def test_while_a_lease_is_renewed_no_more_become_busy_than_the_vault_was_told() -> None:
    async def main() -> None:
        gate = gate_of(100, 100.0, 100)
        crowd = Crowd(gate)
        gate.cap = 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.pump)
            for number in range(10):
                nursery.start_soon(crowd.row, number)
            await trio.sleep(5)
            assert gate.busy == 3
            gate.cap = 100
            await trio.sleep(5)
            assert gate.busy == 10
            nursery.cancel_scope.cancel()

    run(main)


def test_the_run_pauses_while_every_endpoint_is_out_and_goes_on_with_a_probe() -> None:
    async def main() -> None:
        breaker = Breaker(THREE, random.Random(0))
        gate = gate_of(100, 100.0, 100, breaker)
        start = trio.current_time()
        for name in ("Alpha", "Beta"):
            for _ in range(FAULTS):
                breaker.judge(failed(name), EVERYWHERE, start, start)
        crowd = Crowd(gate)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.pump)
            for number in range(50):
                nursery.start_soon(crowd.row, number)
            await trio.sleep(OPEN_S / 2)
            assert gate.busy == 0
            await trio.sleep(2 * OPEN_S)
            assert gate.busy == 2
            assert {given.route.probe for _, _, given in crowd.admitted} == {"Alpha", "Beta"}
            nursery.cancel_scope.cancel()

    run(main)


def test_a_stop_wakes_everybody_and_gives_the_slots_back() -> None:
    async def main() -> None:
        gate = gate_of(1, 1.0, 1)
        held = await gate.acquire((0,))
        stopped = 0

        async def row(number: int) -> None:
            nonlocal stopped
            with pytest.raises(Stopped):
                await gate.acquire((number,))
            stopped += 1

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(row, number + 1)
            await trio.sleep(1)
            gate.stop.call(ExitCode.INTERRUPTED, "test")
            gate.release(held)
        assert stopped == 5 and gate.busy == 0

    run(main)
