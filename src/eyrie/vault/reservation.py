"""How much money a request holds while it is under way: its worst case, or what answers like it have really cost.

A worst case counts every byte of the prompt as a token and an answer of max_tokens; the answers of 2000 slots cost a
tenth of that, so worst cases alone would leave half of a budget idle. A high quantile of the *share* of its worst case
that each answer cost carries over from short prompts to long ones, and from one price list to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyrie.vault.records import Identity

if TYPE_CHECKING:
    from eyrie.vault.reader import Reader

MILLIONTHS = 1_000_000
REFRESH_S = 2.0  # how long a share is used before the vault is asked again
ENOUGH = 200  # attempts before a quantile of them is trusted
QUANTILE_PERCENT = 95
UNFINISHED_PERCENT = 1  # of the attempts that a quantile is taken of


@dataclass(frozen=True)
class Attempt:
    """One attempt of a dataset: micro-dollars at worst, and what it cost (None = it is not over)."""

    worst: int
    cost: int | None


def share_to_reserve(attempts: Sequence[Attempt], *, by_quantile: bool) -> int:
    """Millionths of its worst case that a request of this dataset must hold.

    `attempts` in the order in which they were sent. Short answers come back first, so a quantile of what is finished
    would be too low while many are under way: it is taken of the longest beginning of `attempts` of which at most
    `UNFINISHED_PERCENT` are not over, and those count as their worst case. Until that beginning has `ENOUGH` attempts,
    the worst case is held. An answer that cost more than its worst case (a price rose) raises the share above 1 in
    either mode. What less than the worst case means for the budget: `admission.admit`.
    """
    shares = [MILLIONTHS if a.cost is None else -(-a.cost * MILLIONTHS // a.worst) for a in attempts]
    highest = max((MILLIONTHS, *shares))
    if not by_quantile:
        return highest
    counted = _representative(attempts)
    if counted < ENOUGH:
        return highest
    ordered = sorted(shares[:counted])
    return ordered[-(-counted * QUANTILE_PERCENT // 100) - 1]


def _representative(attempts: Sequence[Attempt]) -> int:
    """Length of the longest beginning of `attempts` that is finished but for a few."""
    longest = unfinished = 0
    for number, attempt in enumerate(attempts, 1):
        unfinished += attempt.cost is None
        if unfinished * 100 <= number * UNFINISHED_PERCENT:
            longest = number
    return longest


def reserved(worst: int, share: int) -> int:
    """Micro-dollars to hold of a worst case; rounded up, so that what is not free holds something."""
    return -(-worst * share // MILLIONTHS)


class Reservations:
    """What requests must hold, by what the vault knows of their datasets. `width`: requests under way at most."""

    def __init__(self, vault: Reader, *, by_quantile: bool, width: int) -> None:
        self._vault, self._by_quantile = vault, by_quantile
        self._last = width + 10 * ENOUGH
        self._shares: dict[tuple[str, str], tuple[float, int]] = {}  # (asked at, millionths)

    def hold(self, identity: Identity, worst: int, now: float) -> int:
        """Micro-dollars to hold for a request that costs `worst` at most; `now` in seconds of a monotonic clock."""
        if worst == 0:
            return 0
        of = (identity.model, identity.dataset)
        asked_at, share = self._shares.get(of, (float("-inf"), MILLIONTHS))
        if now - asked_at >= REFRESH_S:
            share = share_to_reserve(self._vault.attempts(*of, self._last), by_quantile=self._by_quantile)
            self._shares[of] = now, share
        return reserved(worst, share)
