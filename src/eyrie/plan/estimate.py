"""The arithmetic of a plan: what is missing, what it costs, and the largest equal token budget that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from eyrie.plan.lengths import Lengths
from eyrie.plan.rates import Case, Rate, Rates

MOST = 10**15  # tokens; more than anything costs


@dataclass(frozen=True)
class Demand:
    """One dataset. Tokens are output tokens."""

    name: str
    wanted: int | None  # None: not known (it is to fit, and prices are unknown)
    held: int  # in hand
    to_buy: int | None  # set where every row is asked, whatever the tokens
    own: bool  # it has a token budget of its own, or every row is asked: no equal share
    capacity: int | None  # what its rows can give, about; None: not known
    lengths: Lengths
    rates: Rates | None  # None: prices are unknown
    changed: int = 0  # conversations to be bought again
    allowed: Decimal | None = None  # dollars that its own budget leaves; None: it has none
    longest: Decimal = Decimal(0)  # dollars that must be left for its last request to be let out, about

    @property
    def missing(self) -> int | None:
        """Tokens to be bought."""
        if self.to_buy is not None:
            return self.to_buy
        return None if self.wanted is None else max(0, self.wanted - self.held)

    def cost(self, case: Case) -> Rate | None:
        """Dollars for the completions and the prompts of what is missing; None when it cannot be told."""
        if self.rates is None or self.missing is None:
            return None
        rate = self.rates[case]
        return Rate(self.missing * rate.completion, self.missing * rate.prompt)

    @property
    def short(self) -> bool:
        """Whether its rows will hardly give what is wanted."""
        return None not in (self.wanted, self.capacity) and self.wanted > self.capacity  # type: ignore[operator]


def total(demands: Sequence[Demand], case: Case) -> Decimal | None:
    """Dollars for all datasets; None when one cannot be told."""
    costs = [demand.cost(case) for demand in demands]
    return None if None in costs else sum((cost.total for cost in costs if cost is not None), Decimal(0))


def largest_equal(demands: Sequence[Demand], left: Decimal, case: Case) -> int | None:
    """The largest N such that every dataset without a budget of its own can have N output tokens for `left` dollars,
    once the others have theirs. What is in hand is paid for. When all have their own, those are compared instead.

    None when prices are unknown or nothing costs anything.
    """
    shared = [d for d in demands if not d.own] or list(demands)
    if any(d.rates is None for d in demands):
        return None
    fixed = [d.cost(case) for d in demands if d not in shared]
    left -= sum((cost.total for cost in fixed if cost is not None), Decimal(0))

    def fits(tokens: int) -> bool:
        return sum((max(0, tokens - d.held) * d.rates[case].total for d in shared if d.rates), Decimal(0)) <= left

    if left < 0:
        return 0
    low, high = 0, MOST
    if fits(high):
        return None
    while high - low > 1:  # fits(low) and not fits(high)
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
