"""The arithmetic of a plan: rates per output token, what is missing, and the largest budget that fits."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eyrie.gateway.providers import Endpoint
from eyrie.plan.estimate import Demand, largest_equal, total
from eyrie.plan.lengths import Lengths
from eyrie.plan.making import rounded
from eyrie.plan.rates import Case, Rate, rates

EXPECTED = Case.expected
LENGTHS = Lengths(0, 1500, 1.0, "test")


def endpoint(prompt: str, completion: str, **more: Any) -> Endpoint:
    return Endpoint(f"tag{prompt}{completion}", "P", "int4", 0, None, 1000, None, prompt, completion, **more)


def flat(prompt: str, completion: str) -> dict[Case, Rate]:
    return {case: Rate(Decimal(completion), Decimal(prompt)) for case in Case}


def demand(wanted: int | None = 0, held: int = 0, completion: str = "0.0000022", **more: Any) -> Demand:
    base = Demand("d", wanted, held, None, False, None, LENGTHS, flat("0", completion))
    return replace(base, **more)


def test_six_times_ten_million_tokens_at_2_20_cost_132_dollars_and_seven_million_each_92_40() -> None:
    at = rates([endpoint("0", "0.0000022")], 1, 1500)
    six = [demand(10_000_000, rates=at) for _ in range(6)]
    assert total(six, EXPECTED) == Decimal("132") > 100
    seven = [replace(d, wanted=7_000_000) for d in six]
    assert sum(d.missing or 0 for d in seven) == 42_000_000
    assert total(seven, EXPECTED) == Decimal("92.40") <= 100
    largest = largest_equal(six, Decimal(100), EXPECTED)
    assert largest == 7_575_757 and rounded(largest) == 7_570_000


def test_prompts_are_paid_per_answer() -> None:
    at = rates([endpoint("0.0000005", "0.000002", request_price="0.0001")], 1000, 500)[EXPECTED]
    assert at.completion == Decimal("0.000002")
    assert at.prompt * 500 == Decimal("0.0006")  # 1000 prompt tokens and one request for 500 tokens of output


def test_the_expected_price_weighs_endpoints_by_one_over_the_square_of_their_price() -> None:
    at = rates([endpoint("0", "0.000001"), endpoint("0", "0.000003")], 1, 100)
    assert at[Case.cheapest].total == Decimal("0.000001") and at[Case.worst].total == Decimal("0.000003")
    # weights 1 and 1/9: (1 + 3/9) / (1 + 1/9) = 1.2
    assert abs(at[EXPECTED].total - Decimal("0.0000012")) < Decimal("1e-20")


def test_prices_play_no_part_when_the_fast_are_asked_first() -> None:
    at = rates([endpoint("0", "0"), endpoint("0", "0.000003")], 1, 100, "throughput")
    assert at[EXPECTED].total == Decimal("0.0000015")


def test_hours_count_by_their_length_and_worst_forgets_the_discount() -> None:
    pricing = {"prompt": "0", "completion": "0.000004", "discount": "0.5",
               "overrides": [{"utc_start": "0000", "utc_end": "0600", "completion": "0.000002"}]}  # fmt: skip
    at = rates([endpoint("0", "0.000004", pricing=pricing)], 1, 100)
    assert at[Case.cheapest].total == Decimal("0.000001")
    assert at[EXPECTED].total == Decimal("0.00000175")
    assert at[Case.worst].total == Decimal("0.000004")


def test_a_free_endpoint_makes_everything_free() -> None:
    at = rates([endpoint("0", "0"), endpoint("0", "0.000003")], 10, 100)
    assert at[EXPECTED].total == 0
    assert largest_equal([demand(5, rates=flat("0", "0"))], Decimal(0), EXPECTED) is None


def test_what_is_in_hand_is_paid_for() -> None:
    assert demand(100, held=30).missing == 70 and demand(100, held=130).missing == 0
    cost = demand(1_000_000, held=250_000).cost(EXPECTED)
    assert cost is not None and cost.total == Decimal("1.65")


def test_without_prices_or_wishes_nothing_is_claimed() -> None:
    assert demand(10, rates=None).cost(EXPECTED) is None and demand(None).cost(EXPECTED) is None
    assert total([demand(10), demand(10, rates=None)], EXPECTED) is None
    assert largest_equal([demand(None), demand(10, rates=None)], Decimal(9), EXPECTED) is None


def test_a_dataset_with_its_own_budget_is_served_first() -> None:
    own = demand(1_000_000, own=True)
    assert largest_equal([own, demand(None), demand(None)], Decimal("6.6"), EXPECTED) == 1_000_000
    assert largest_equal([own], Decimal("4.4"), EXPECTED) == 2_000_000  # none shares: they are compared themselves
    assert largest_equal([own, demand(None)], Decimal(1), EXPECTED) == 0


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 5000)), min_size=1, max_size=8),
    st.decimals(0, 1000, places=2),
)
def test_the_largest_equal_budget_fits_and_one_token_more_does_not(
    datasets: list[tuple[int, int]], money: Decimal
) -> None:
    demands = [demand(None, held, rates=flat("0", str(Decimal(nano) / 10**9))) for held, nano in datasets]
    most = largest_equal(demands, money, EXPECTED)

    def cost(tokens: int) -> Decimal:
        found = total([replace(d, wanted=tokens) for d in demands], EXPECTED)
        assert found is not None
        return found

    assert most is not None and cost(most) <= money < cost(most + 1)


@given(st.integers(1, 10**12))
def test_rounding_keeps_three_digits_and_never_rounds_up(tokens: int) -> None:
    found = rounded(tokens)
    assert found is not None and 0 < found <= tokens < found * 1.01 + 1
    assert len(str(found).rstrip("0")) <= 3
