"""Prices by size, hour and discount, and the highest that can apply."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from eyrie.errors import InputError
from eyrie.gateway.prices import Price, dearest, every_price, kept, over_the_day, price_at

BASE = {"prompt": "0.000001", "completion": "0.000002"}


def pricing(*overrides: dict[str, Any], **more: Any) -> dict[str, Any]:
    return kept({**BASE, "overrides": list(overrides), **more})


def prompt(value: dict[str, Any], tokens: int = 10, minute: int = 0) -> Decimal:
    return price_at(value, tokens, minute).prompt


def test_an_answer_costs_its_tokens_and_the_request() -> None:
    assert Price(Decimal("0.1"), Decimal("0.2"), Decimal("0.05")).of(3, 2) == Decimal("0.75")


def test_a_size_tier_holds_for_strictly_longer_prompts_and_inherits_what_it_does_not_name() -> None:
    value = pricing({"min_prompt_tokens": 1000, "prompt": "0.000004"})
    assert prompt(value, 1000) == Decimal("0.000001") and prompt(value, 1001) == Decimal("0.000004")
    assert price_at(value, 1001, 0).completion == Decimal("0.000002")


def test_an_hour_window_may_wrap_midnight() -> None:
    value = pricing({"utc_start": "1630", "utc_end": "0030", "prompt": "0.0000005"})
    cheap = [minute for minute in range(1440) if prompt(value, minute=minute) == Decimal("0.0000005")]
    assert len(cheap) == 8 * 60 and {16 * 60 + 30, 0, 29} <= set(cheap) and not {30, 16 * 60 + 29} & set(cheap)
    assert [(minutes, price.prompt) for minutes, price in over_the_day(value, 10)] == [
        (30, Decimal("0.0000005")), (960, Decimal("0.000001")), (450, Decimal("0.0000005")),
    ]  # fmt: skip


def test_of_the_overrides_that_hold_the_later_wins_price_by_price() -> None:
    value = pricing({"prompt": "0.000003", "completion": "0.000009"}, {"min_prompt_tokens": 5, "prompt": "0.000002"})
    assert price_at(value, 6, 0) == Price(Decimal("0.000002"), Decimal("0.000009"))


def test_both_conditions_of_an_override_must_hold() -> None:
    value = pricing({"min_prompt_tokens": 5, "utc_start": "0000", "utc_end": "0100", "prompt": "0.000009"})
    assert prompt(value, 6, 30) == Decimal("0.000009")
    assert prompt(value, 6, 90) == prompt(value, 5, 30) == Decimal("0.000001")


def test_a_discount_lowers_what_is_expected_but_not_what_is_reserved() -> None:
    value = pricing({"min_prompt_tokens": 1000, "prompt": "0.000004"}, discount=0.25)
    assert prompt(value, 2000) == Decimal("0.000003")
    assert dearest(value).prompt == Decimal("0.000004")


def test_the_dearest_price_knows_cache_writes_reasoning_and_every_override() -> None:
    value = pricing({"utc_start": "0900", "utc_end": "1000", "completion": "0.000007"}, input_cache_write="0.00000125")
    assert dearest(value) == Price(Decimal("0.00000125"), Decimal("0.000007"))
    assert dearest(kept({**BASE, "internal_reasoning": "0.000003"})).completion == Decimal("0.000003")
    assert price_at(kept({**BASE, "internal_reasoning": "0"}), 1, 0).completion == Decimal("0.000002")


def test_every_tier_and_hour_is_listed() -> None:
    value = pricing({"min_prompt_tokens": 9, "prompt": "0.000004"}, {"utc_start": "0100", "completion": "0.000005"})
    assert {(p.prompt, p.completion) for p in every_price(value)} == {
        (Decimal(a), Decimal(b)) for a in ("0.000001", "0.000004") for b in ("0.000002", "0.000005")
    }


@pytest.mark.parametrize(
    "broken",
    [{"prompt": "-1"}, {"completion": "free"}, {"discount": 1.5}, {"discount": "x"}, {"overrides": [{"prompt": "-1"}]},
     {"overrides": [{"utc_start": "2575", "prompt": "1"}]}, {"overrides": [{"min_prompt_tokens": "many"}]}],
)  # fmt: skip
def test_what_is_no_price_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="endpoint listing"):
        kept({**BASE, **broken})
