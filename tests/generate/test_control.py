"""The pure parts of the run loop on clocks of their own: limiter, token window, conversation."""

from __future__ import annotations

from decimal import Decimal

import trio
import trio.testing

from eyrie.gateway.generation import Generation
from eyrie.generate.buyer import settle_with_patience
from eyrie.generate.conversation import Conversation
from eyrie.generate.limiter import Limiter
from eyrie.generate.window import TokenWindow
from eyrie.vault import Usage


def test_the_limiter_starts_fast_cuts_once_per_episode_and_recovers_slowly() -> None:
    limiter = Limiter(1000, 10.0)
    for _ in range(10):
        limiter.success(busy=10)
    assert limiter.limit > 10  # grows while it is saturated
    grown = limiter.limit
    for _ in range(50):  # a storm is one episode
        limiter.overload(100.0, None)
    assert limiter.limit == grown * 0.8
    before = limiter.limit
    limiter.success(busy=int(before))
    assert before < limiter.limit < before + 0.1


def test_the_limiter_waits_as_long_as_it_is_told_and_never_freezes() -> None:
    limiter = Limiter(100, 50.0)
    limiter.overload(10.0, retry_after=7.0)
    assert limiter.allowed(16.9) == 0 and limiter.allowed(17.0) > 0
    for second in range(1000):
        limiter.overload(20.0 + 6 * second, None)
    assert limiter.allowed(10_000.0) == 1


def test_an_idle_limiter_does_not_grow() -> None:
    limiter = Limiter(1000, 100.0)
    limiter.success(busy=3)
    assert limiter.limit == 100


def test_the_window_closes_on_what_is_expected_and_opens_again_when_answers_are_short() -> None:
    async def main() -> None:
        window = TokenWindow(100, guess=50)
        window.begin()
        assert window.open
        window.begin()
        assert not window.open and not window.reached  # two rows of 50 may fill it
        window.end(10)
        assert window.open
        window.begin()
        window.end(60)
        window.end(40)
        assert window.reached

    trio.run(main)


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
