"""`GET /key`: the gateway's own figure of what a key has used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eyrie.vault.money import decimal


@dataclass(frozen=True)
class KeyFigures:
    """Dollars: used since the key was made, and left of its limit (None = it has no limit). The key's label, which
    holds a part of the key, is not kept."""

    usage: Decimal
    limit_remaining: Decimal | None


def read_key_figures(value: Any) -> KeyFigures | None:
    """The figures in the endpoint's JSON; None when it tells no usage."""
    data = value.get("data") if isinstance(value, Mapping) else None
    usage = decimal(data.get("usage")) if isinstance(data, Mapping) else None
    if usage is None or usage < 0 or not isinstance(data, Mapping):
        return None
    return KeyFigures(usage, decimal(data.get("limit_remaining")))
