"""Buying from a vault without a gateway."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from eyrie.vault import Answer, Identity, Limits, Usage, Vault, Wanted, admission, ledger

RICH = Limits(10**9)


def identity(row: str = "a", **more: Any) -> Identity:
    return Identity(**{"model": "m", "dataset": "d", "row": row, "turn": 0, "repetition": 0, **more})


def wanted(row: str = "a", fingerprint: str | None = None, reserve: int = 100, **more: Any) -> Wanted:
    return Wanted(identity(row), fingerprint or f"f-{row}", b'{"q":1}', reserve, **more)


def answer(text: bytes = b"{}", generation: str = "gen-1") -> Answer:
    return Answer("", "ok", text, Usage(3, 5), "stop", "Alpha", "m", generation)


def admit(vault: Vault, job: int, want: Wanted, limits: Limits = RICH) -> Any:
    return vault.write(lambda c: admission.admit(c, job, want, limits))


def buy(vault: Vault, job: int, want: Wanted, cost: str = "0.00005") -> Answer:
    entry = admit(vault, job, want).entry
    return vault.write(lambda c: ledger.finish(c, entry, answer(generation=f"gen-{entry}"), Decimal(cost)))


def hurry(vault: Vault) -> None:
    """Give up durability for a test that makes many commits and is not about them."""
    vault._writer._connection.execute("PRAGMA synchronous = OFF")
