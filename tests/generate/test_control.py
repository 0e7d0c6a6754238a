"""The pure parts of the run loop on clocks of their own: token window, conversation."""

from __future__ import annotations

import heapq
import random
from decimal import Decimal

import trio
import trio.testing

from eyrie.gateway.generation import Generation
from eyrie.generate.bills import settle_with_patience
from eyrie.generate.conversation import Conversation
from eyrie.generate.window import TokenWindow
from eyrie.vault import Usage


def test_the_window_closes_on_what_is_expected_and_opens_again_when_answers_are_short() -> None:
    window = TokenWindow(100, guess=50, clock=lambda: 0.0)
    window.begin(0)
    assert window.open
    window.begin(1)
    assert not window.open and not window.reached  # two rows of 50 may fill it
    window.end(0, 10)
    assert window.open
    window.begin(2)
    window.end(2, 60)
    window.end(1, 40)
    assert window.reached


def test_rows_that_are_long_under_way_are_expected_to_bring_more_than_the_mean() -> None:
    now = 0.0
    window = TokenWindow(100_000, guess=50, clock=lambda: now)
    for row in range(100):  # one token a second, 1 to 100 s
        window.begin(row)
        window.sent(row)
    for row in range(100):
        now = row + 1.0
        window.end(row, row + 1)
    for row in range(100, 110):
        window.begin(row)
    now += 1000.0  # waiting for a slot tells nothing
    waiting = window.expected - window.tokens
    for row in range(100, 110):
        window.sent(row)
    now += 1.0
    young = window.expected - window.tokens
    now += 80.0
    old = window.expected - window.tokens
    assert 400 < waiting <= young < 600 and 850 < old < 1000
    window.abandon(109)
    assert window.under_way == 9 and window.expected - window.tokens < old


def conversation(turns: list[dict[str, object]], user_turns: int = 9) -> Conversation:
    return Conversation.start({"messages": [{"role": "user", "content": "q"}], "turns": turns}, user_turns)


def call(*names: str) -> dict[str, object]:
    calls = [{"id": f"c{i}", "function": {"name": name, "arguments": "{}"}} for i, name in enumerate(names)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_results_of_calls_that_were_not_made_are_skipped() -> None:
    talk = conversation([{"role": "tool", "name": "f", "content": "1"}, {"role": "user", "content": "next"}])
    talk.answer({"role": "assistant", "content": "no call"}, cut=False)
    assert talk.messages[-1] == {"role": "user", "content": "next"} and talk.ended is None


def test_two_calls_of_one_function_take_two_results() -> None:
    results = [{"role": "tool", "name": "f", "content": str(i)} for i in range(2)]
    talk = conversation([*results])
    talk.answer(call("f", "f"), cut=False)
    assert [(m["tool_call_id"], m["content"]) for m in talk.messages[-2:]] == [("c0", "0"), ("c1", "1")]
    talk.answer(call("f"), cut=False)
    assert talk.ended == "tool_result_missing" and talk.messages[-1]["role"] == "assistant"


def test_half_a_set_of_results_is_none() -> None:
    talk = conversation([{"role": "tool", "name": "f", "content": "1"}])
    talk.answer(call("f", "g"), cut=False)
    assert talk.ended == "tool_result_missing" and len(talk.messages) == 2


def test_user_turns_are_limited_and_a_cut_answer_ends_the_conversation() -> None:
    talk = conversation([{"role": "user", "content": str(i)} for i in range(3)], user_turns=2)
    talk.answer({"role": "assistant", "content": "a"}, cut=False)
    talk.answer({"role": "assistant", "content": "b"}, cut=False)
    assert talk.ended == "turn_limit" and talk.turn == 2
    cut = conversation([{"role": "user", "content": "more"}])
    cut.answer({"role": "assistant", "content": "half"}, cut=True)
    assert cut.ended == "length" and cut.messages[-1]["content"] == "half"


def test_a_question_that_gets_no_answer_leaves_the_conversation() -> None:
    talk = conversation([{"role": "user", "content": "next"}])
    talk.answer({"role": "assistant", "content": "a"}, cut=False)
    talk.abandon("empty")
    assert [m["content"] for m in talk.messages] == ["q", "a"] and talk.ended == "empty"


def test_a_bill_that_is_late_by_half_a_minute_is_waited_for() -> None:
    bill = Generation("gen-1", Decimal("0.01"), Usage(), "Alpha")

    async def main() -> Generation | None:
        known_at = trio.current_time() + 30

        async def ask() -> Generation | None:
            return bill if trio.current_time() >= known_at else None

        return await settle_with_patience(ask)

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) is bill


def test_rows_with_long_tails_are_neither_asked_in_excess_nor_one_by_one() -> None:
    """One dataset on 100 slots: nearly no row that nobody needs, and a tail as short as the answers allow."""
    now, dice = 0.0, random.Random(3)
    window = TokenWindow(2_000_000, guess=2048, clock=lambda: now)
    tokens: list[int] = []
    under_way: list[tuple[float, int]] = []
    while True:
        while len(under_way) < 100 and window.open:
            seconds = dice.lognormvariate(4.094, 0.692)
            window.begin(len(tokens))
            window.sent(len(tokens))
            heapq.heappush(under_way, (now + seconds, len(tokens)))
            tokens.append(round(25 * seconds))
        if not under_way:
            break
        now, row = heapq.heappop(under_way)
        window.end(row, tokens[row])
    needed = next(n for n in range(len(tokens)) if sum(tokens[: n + 1]) >= 2_000_000) + 1
    assert window.reached and len(tokens) - needed <= 0.02 * needed
    free = [0.0] * 100  # slots that know how many rows will be needed
    for count in tokens[:needed]:
        heapq.heapreplace(free, free[0] + count / 25)
    assert now < 1.15 * max(free)
