"""`GET /generation?id=`: what a request cost whose reply was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eyrie.vault.money import decimal
from eyrie.vault.records import Usage


@dataclass(frozen=True)
class Generation:
    """The gateway's own record of one request. `cost` in dollars."""

    id: str
    cost: Decimal
    usage: Usage
    provider: str | None


def read_generation(value: Any) -> Generation | None:
    """The record in the endpoint's JSON; None when it has no cost yet."""
    data = value.get("data") if isinstance(value, Mapping) else None
    if not isinstance(data, Mapping):
        return None
    cost = decimal(data.get("total_cost"))
    if cost is None or cost < 0:
        return None

    def count(name: str) -> int:
        item = data.get(name)
        return item if type(item) is int and item >= 0 else 0

    usage = Usage(*(count(f"native_tokens_{name}") for name in ("prompt", "completion", "reasoning", "cached")))
    provider = data.get("provider_name")
    return Generation(str(data.get("id", "")), cost, usage, provider if isinstance(provider, str) else None)
