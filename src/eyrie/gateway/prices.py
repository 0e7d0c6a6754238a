"""What an endpoint charges: base prices, a discount, and overrides for long prompts or hours of the day.

The catalogue's rules: an override holds when all of its conditions do (more prompt tokens than `min_prompt_tokens`,
an hour between `utc_start` and `utc_end`, which may wrap midnight); of those that hold the later wins, price by price;
a price that no override names is the base's. The discount then takes its share off everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eyrie.errors import InputError
from eyrie.vault.money import decimal

DAY = 1440  # minutes
PRICES = ("prompt", "completion", "request", "input_cache_write", "internal_reasoning")
CONDITIONS = ("min_prompt_tokens", "utc_start", "utc_end")

Pricing = Mapping[str, Any]  # an endpoint's `pricing` in the catalogue: decimal strings in USD per token


@dataclass(frozen=True)
class Price:
    """USD per prompt token, per completion token, and per request."""

    prompt: Decimal
    completion: Decimal
    request: Decimal = Decimal(0)

    def of(self, prompt_tokens: int, completion_tokens: int) -> Decimal:
        """Dollars of one answer."""
        return prompt_tokens * self.prompt + completion_tokens * self.completion + self.request


def kept(pricing: Pricing) -> dict[str, Any]:
    """The parts of a `pricing` that decide the price of text, as decimal strings, checked.

    Raises InputError when a price is no number or negative (a router's "-1" is no price), a discount lies outside
    0 to 1 or an hour is none.
    """
    found: dict[str, Any] = {name: _amount(pricing, name) for name in PRICES if pricing.get(name) is not None}
    found = {"prompt": "0", "completion": "0", **found}
    discount = decimal(pricing.get("discount") or 0)
    if discount is None or not 0 <= discount <= 1:
        raise InputError(f"endpoint listing: discount {pricing.get('discount')!r} is no share between 0 and 1")
    if discount:
        found["discount"] = format(discount, "f")
    overrides = [_override(entry) for entry in pricing.get("overrides") or ()]
    if overrides:
        found["overrides"] = overrides
    return found


def _override(entry: Pricing) -> dict[str, Any]:
    found = {name: _amount(entry, name) for name in PRICES if entry.get(name) is not None}
    found |= {name: entry[name] for name in CONDITIONS if entry.get(name) is not None}
    if not str(found.get("min_prompt_tokens", 0)).isdigit():
        raise InputError(f"endpoint listing: min_prompt_tokens={found['min_prompt_tokens']!r} is no number of tokens")
    if "min_prompt_tokens" in found:
        found["min_prompt_tokens"] = int(found["min_prompt_tokens"])
    for name in ("utc_start", "utc_end"):
        if name in found:
            found[name] = f"{_minute(found[name]) // 60:02d}{_minute(found[name]) % 60:02d}"
    return found


def _amount(pricing: Pricing, name: str) -> str:
    value = decimal(pricing[name])
    if value is None or value < 0:
        raise InputError(f"endpoint listing: price {name}={pricing[name]!r} is no price")
    return format(value, "f")


def _minute(text: Any) -> int:
    """Minute of the day of `HHMM`."""
    digits = str(text).replace(":", "").zfill(4)
    if not digits.isdigit() or len(digits) != 4 or int(digits[2:]) > 59 or int(digits) > 2400:
        raise InputError(f"endpoint listing: price override at {text!r}, which is no HHMM")
    return (int(digits[:2]) * 60 + int(digits[2:])) % DAY


def _holds(override: Pricing, prompt_tokens: int, minute: int) -> bool:
    if prompt_tokens <= override.get("min_prompt_tokens", -1):
        return False
    if "utc_start" not in override and "utc_end" not in override:
        return True
    start, end = _minute(override.get("utc_start", "0000")), _minute(override.get("utc_end", "0000"))
    return start <= minute < end if start < end else minute >= start or minute < end


def price_at(pricing: Pricing, prompt_tokens: int, minute: int) -> Price:
    """What a request of `prompt_tokens` costs at a minute of the UTC day, after the discount."""
    names = {name: Decimal(pricing.get(name, "0")) for name in PRICES}
    for override in pricing.get("overrides", ()):
        if _holds(override, prompt_tokens, minute):
            names |= {name: Decimal(override[name]) for name in PRICES if name in override}
    left = 1 - Decimal(pricing.get("discount", "0"))
    completion = max(names["completion"], names["internal_reasoning"])  # "0" there: reasoning is plain output
    return Price(names["prompt"] * left, completion * left, names["request"] * left)


def over_the_day(pricing: Pricing, prompt_tokens: int) -> Iterator[tuple[int, Price]]:
    """(minutes, price) of the stretches of a UTC day with one price each, in order."""
    edges = {0, DAY}
    for override in pricing.get("overrides", ()):
        edges |= {_minute(override[name]) for name in ("utc_start", "utc_end") if name in override}
    marks = sorted(edges)
    for start, end in zip(marks, marks[1:], strict=False):
        yield end - start, price_at(pricing, prompt_tokens, start)


def every_price(pricing: Pricing) -> list[Price]:
    """One price for each combination of prompt length and hour that the overrides tell apart, after the discount."""
    sizes = {0, *(o.get("min_prompt_tokens", -1) + 1 for o in pricing.get("overrides", ()))}
    return [price for size in sorted(sizes) for _, price in over_the_day(pricing, size)]


def dearest(pricing: Pricing) -> Price:
    """The highest prices that any request can meet, whatever its size and hour: every override, the price of
    writing the prompt into a cache, and no discount, since one can end while the run is under way."""
    entries = [pricing, *pricing.get("overrides", ())]

    def top(*names: str) -> Decimal:
        return max(Decimal(entry.get(name, "0")) for entry in entries for name in names)

    return Price(top("prompt", "input_cache_write"), top("completion", "internal_reasoning"), top("request"))
