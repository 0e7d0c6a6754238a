"""Hold the vault's books against the gateway's own figure, at the start and at the end of a paid job.

`vault/reconciliation.py` says what a reading proves and how it settles what was lost at the provider.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import trio

from eyrie.errors import InputError, MissingError
from eyrie.gateway.account import KeyFigures, read_key_figures
from eyrie.gateway.fetch import get_json
from eyrie.gateway.key import ApiKey
from eyrie.generate.settings import Settings
from eyrie.generate.stop import StopSign
from eyrie.vault import Vault, leases, reconciliation
from eyrie.vault.reconciliation import Difference

WAIT_S = 0.05  # between two looks at whether another job's reading is done


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def enter(vault: Vault, settings: Settings, key: ApiKey, *, read: bool) -> tuple[int, int | None]:
    """Register a job; when it finds its account at rest (and is to `read`), announce a reading in the same transaction,
    so that no job that starts meanwhile sends before it is done. Returns the numbers of the job and of the reading."""

    def both(connection: sqlite3.Connection) -> tuple[int, int | None]:
        job = leases.register(connection, settings.run, settings.account, settings.dataset, vault.process)
        if not read:
            return job, None
        account, lag = settings.account, settings.usage_lag_s
        reading = reconciliation.begin(connection, account, job, key.mark, vault.process, lag)
        return job, reading

    return vault.write(both)


@dataclass
class Reconciler:
    """One job's readings of its account."""

    vault: Vault
    settings: Settings
    key: ApiKey
    url: str
    job: int
    reading: int | None  # announced by `enter`
    stop: StopSign
    tell: Callable[[str], None] = say

    async def at_start(self) -> None:
        """Before the first request: complete the announced reading, which settles what was lost and is the base of
        later ones; or wait for another job's.

        Raises EyrieError(KEY_REFUSED) when the gateway does not know the key: better now than at the first request.
        """
        account, number = self.settings.account, self.reading
        if number is None:
            while await self.vault.commit(lambda c: reconciliation.pending(c, account, self.job)):
                await self.stop.sleep(WAIT_S)
            return
        try:
            figures = await self._ask()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.vault.commit(lambda c: reconciliation.give_up(c, number))
            raise
        if figures is None:
            await self.vault.commit(lambda c: reconciliation.give_up(c, number))
            return
        usage = figures.usage
        difference, settled = await self.vault.commit(lambda c: reconciliation.complete(c, number, usage))
        if settled and difference is not None:
            self.tell(
                f"account {account}: {settled} lost requests are settled by the key's usage: they cost "
                f"${max(difference.gap, Decimal(0)):f} together"
            )
        self._tell_difference(difference)
        if figures.limit_remaining is not None and figures.limit_remaining <= 0:
            self.tell(f"account {account}: nothing is left of the key's own limit; raise it at the gateway")

    async def at_end(self) -> None:
        """After the last reply, when no other job of the account runs: say when the books differ. Nothing is settled
        by this reading, since the gateway's figure may not have caught up."""
        rest = await self.vault.commit(
            lambda c: reconciliation.at_rest(c, self.settings.account, self.job, self.vault.process, 0)
        )
        figures = await self._ask() if rest else None
        if figures is not None:
            usage = figures.usage
            self._tell_difference(
                await self.vault.commit(
                    lambda c: reconciliation.compare(c, self.settings.account, self.key.mark, usage)
                )
            )

    async def _ask(self) -> KeyFigures | None:
        try:
            value = await trio.to_thread.run_sync(lambda: get_json(self.url, "key", self.key, pause_s=0.2))
        except (MissingError, InputError) as error:
            self.tell(f"account {self.settings.account}: not reconciled ({error})")
            return None
        figures = read_key_figures(value)
        if figures is None:
            self.tell(f"account {self.settings.account}: not reconciled ({self.url}/key tells no usage)")
        return figures

    def _tell_difference(self, difference: Difference | None) -> None:
        if difference is None or difference.explained:
            return
        account, gap = self.settings.account, difference.gap
        books = (
            f"account {account}: the key's usage rose by ${difference.rise:f}, the vault booked ${difference.booked:f}"
        )
        if gap > 0:
            held = f" beyond the ${difference.held:f} held for lost requests" if difference.held else ""
            self.tell(f"{books}: ${gap:f} more than the vault knows{held}; does anybody else use this key?")
        else:
            self.tell(f"{books}: ${-gap:f} less; the gateway's figure lags behind, or it refunded answers")
