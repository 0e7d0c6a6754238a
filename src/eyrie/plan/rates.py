"""Dollars per output token at the accepted endpoints' prices: cheapest, expected, worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from eyrie.gateway.prices import DAY, Price, over_the_day
from eyrie.gateway.providers import Endpoint


class Case(Enum):
    """Which of the accepted prices the answers will be bought at."""

    cheapest = "cheapest"  # every answer from the cheapest endpoint at its cheapest hour
    expected = "expected"  # as the gateway balances the load
    worst = "worst"  # every answer from the dearest endpoint at its dearest hour, size and without its discount


@dataclass(frozen=True)
class Rate:
    """USD per output token: for the output itself, and for the prompts (and requests) that it takes."""

    completion: Decimal
    prompt: Decimal

    @property
    def total(self) -> Decimal:
        return self.completion + self.prompt


Rates = dict[Case, Rate]


def rates(endpoints: Sequence[Endpoint], prompt_tokens: int, completion_tokens: int, sort: str | None = None) -> Rates:
    """The three rates for answers of `completion_tokens` to prompts of `prompt_tokens` (both means, at least 1).

    Expected: each endpoint's mean over the day, weighted by 1/price^2, which is how OpenRouter spreads requests over
    the endpoints that are up. Its price there is that of one such answer. With `sort` (gateway.sort) by throughput or
    latency prices play no part, and every endpoint counts alike: which is fast at the time is not known beforehand,
    nor how much one takes before the next is asked. By price counts as without: the cheapest alone hold no large run.
    """

    def rate(price: Price) -> Rate:
        return Rate(price.completion, (prompt_tokens * price.prompt + price.request) / completion_tokens)

    hours = [list(over_the_day(e.tariff, prompt_tokens)) for e in endpoints]
    cheapest = min((rate(price) for stretch in hours for _, price in stretch), key=lambda r: r.total)
    means = [_mean((Decimal(minutes) / DAY, rate(price)) for minutes, price in stretch) for stretch in hours]
    blind = sort in ("throughput", "latency")
    free = [] if blind else [mean for mean in means if not mean.total]
    expected = free[0] if free else _mean((1 if blind else 1 / mean.total**2, mean) for mean in means)
    tops = (Price(*(Decimal(getattr(e, f"{n}_price")) for n in ("prompt", "completion", "request"))) for e in endpoints)
    worst = max((rate(price) for price in tops), key=lambda r: r.total)
    return {Case.cheapest: cheapest, Case.expected: expected, Case.worst: worst}


def _mean(weighted: Iterable[tuple[Decimal | int, Rate]]) -> Rate:
    pairs = list(weighted)
    whole = sum(weight for weight, _ in pairs)
    return Rate(
        sum((w * r.completion for w, r in pairs), Decimal(0)) / whole,
        sum((w * r.prompt for w, r in pairs), Decimal(0)) / whole,
    )
