"""Money: Decimal dollars as billed, integer micro-dollars as booked. Never a float."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

MICRO = Decimal(1_000_000)


def decimal(value: Any) -> Decimal | None:
    """A price or cost from JSON (string, int or float) as Decimal dollars; None when it is no finite number.

    A float goes through its shortest decimal text, which is what the sender wrote.
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def microdollars(dollars: Decimal) -> int:
    """Dollars as micro-dollars, rounded up: what is booked is never less than what is billed."""
    return int((dollars * MICRO).to_integral_value(rounding=ROUND_CEILING))


def dollars(micro: int) -> str:
    """Micro-dollars for people: `$12.34`, with as many digits as a small sum needs."""
    value = Decimal(micro) / MICRO
    return f"${value:.2f}" if micro == 0 or abs(value) >= 1 else f"${value:.6f}".rstrip("0").rstrip(".")
