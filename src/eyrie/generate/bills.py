"""What a request cost, asked of the gateway when its reply did not say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal

import httpx
import trio

from eyrie.gateway.clients import Clients
from eyrie.gateway.generation import Generation, read_generation
from eyrie.gateway.providers import ProviderList
from eyrie.gateway.reply import Reply, parse
from eyrie.vault import Usage, Vault, ledger

SETTLE_TRIES = 7  # over 36 s: the gateway's record of a request may lag behind it


@dataclass(frozen=True)
class Bills:
    """The gateway's records of one job's requests. `paid`: answers may cost money; without it nothing is asked."""

    vault: Vault
    clients: Clients
    providers: ProviderList
    paid: bool
    max_tokens: int  # of one answer

    async def record(self, generation_id: str | None) -> Generation | None:
        """The gateway's record of a request, asked for with patience; None when it has none."""
        if not generation_id or not self.paid:
            return None
        return await settle_with_patience(lambda: self._ask(generation_id))

    async def of(self, reply: Reply) -> tuple[Usage, Decimal]:
        """Tokens and cost of an answer that came without: the gateway's record, else tokens at the highest price."""
        record = await self.record(reply.generation_id)
        if record is not None:
            return (reply.usage if reply.usage.completion_tokens else record.usage), record.cost
        cost = (
            reply.usage.prompt_tokens * self.providers.highest("prompt_price")
            + (reply.usage.completion_tokens or self.max_tokens) * self.providers.highest("completion_price")
            + self.providers.highest("request_price")
        )
        return reply.usage, cost

    async def settle(self, lost: list[tuple[int, str]]) -> int:
        """Ask what attempts (journal entry, generation id) cost that were lost; returns how many are settled."""
        settled = 0
        for entry, generation_id in lost:
            record = await self._ask(generation_id)
            if record is not None:
                cost, provider = record.cost, record.provider
                await self.vault.commit(lambda c, e=entry, k=cost, p=provider: ledger.settle(c, e, k, p))
                settled += 1
        return settled

    async def _ask(self, generation_id: str) -> Generation | None:
        try:
            response = await self.clients.of(0).get(
                f"{self.clients.url}/generation", params={"id": generation_id}, timeout=30
            )
            return read_generation(parse(response.content)) if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None


async def settle_with_patience(ask: Callable[[], Awaitable[Generation | None]]) -> Generation | None:
    """Ask up to `SETTLE_TRIES` times with growing pauses."""
    for attempt in range(SETTLE_TRIES):
        if attempt:
            await trio.sleep(0.1 * 3**attempt / 3)
        found = await ask()
        if found is not None:
            return found
    return None
