"""Buy one answer: admit, send, judge, book; and again until there is an answer, a rejection or a stop."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal

import trio

from eyrie.errors import ExitCode
from eyrie.gateway.clients import Clients
from eyrie.gateway.errors import Blame, Fault
from eyrie.gateway.exchange import Patience, exchange
from eyrie.gateway.key import ApiKey
from eyrie.gateway.providers import ProviderList
from eyrie.gateway.reply import Expected, Reply
from eyrie.gateway.request import Request, headers, narrow
from eyrie.generate.bills import Bills
from eyrie.generate.breaker import EVERYWHERE, Route, may_be_cached, unlisted
from eyrie.generate.gate import Gate
from eyrie.generate.purse import Purse
from eyrie.generate.settings import Settings
from eyrie.generate.stop import Stopped, StopSign
from eyrie.generate.tally import Tally
from eyrie.schema import Reserve
from eyrie.vault import Admission, Answer, Decision, Identity, Usage, Vault, Wanted, ledger
from eyrie.vault.answer_times import AnswerTimes
from eyrie.vault.money import dollars, microdollars
from eyrie.vault.reservation import Reservations

POLL_S = 0.2  # how often to ask again while another process holds the request
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0


@dataclass
class Buyer:
    """Buys answers for one job. One instance per process; all its tasks share one event loop."""

    vault: Vault
    job: int
    settings: Settings
    providers: ProviderList
    gate: Gate
    clients: Clients
    stop: StopSign
    key: ApiKey
    tally: Tally = field(default_factory=Tally)
    purse: Purse = field(init=False)
    bills: Bills = field(init=False)
    held_back: Callable[[int], None] = lambda change: None  # hears of rows that wait without wanting a slot
    _claims: dict[tuple[str, int], trio.Event] = field(default_factory=dict)
    _last_good: float = field(default_factory=trio.current_time)
    _under_way: dict[int, float] = field(default_factory=dict)  # journal entry -> when it was sent, the oldest first
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.purse = Purse(self.stop)
        self.bills = Bills(self.vault, self.clients, self.providers, self.paid, self.settings.sampling.max_tokens)
        by_quantile, width = self.settings.reserve is Reserve.quantile, self.settings.in_flight
        self._answers = AnswerTimes(self.vault)
        self._reservations = Reservations(self.vault, by_quantile=by_quantile, width=width)

    @property
    def paid(self) -> bool:
        """Whether answers may cost money."""
        return not all(e.is_free for e in self.providers.accepted)

    async def get(self, identity: Identity, request: Request, order: tuple[int, ...]) -> Answer:
        """The answer (or rejection) for `identity`, from the vault or bought. Raises Stopped.

        Identical requests under way in this process wait for the first of them.
        """
        claim = (request.fingerprint, identity.repetition)
        while claim in self._claims:
            await self._claims[claim].wait()
        self._claims[claim] = trio.Event()
        try:
            return await self._buy(identity, request, order)
        finally:
            self._claims.pop(claim).set()

    async def _buy(self, identity: Identity, request: Request, order: tuple[int, ...]) -> Answer:
        worst = microdollars(request.worst_case)
        wanted = Wanted(identity, request.fingerprint, request.body, worst, self.settings.rebuy, worst)
        failures, resend = 0, None
        while True:
            hold = self._reservations.hold(identity, worst, trio.current_time())
            answer_s = min(self._answers.seconds(identity.model), self.settings.deadline_s)
            now = replace(wanted, reserve=hold, answer_s=answer_s)
            admission, reply = await self._attempt(now, order, request.path, resend)
            if admission.decision is Decision.STORED and admission.answer is not None:
                self.tally.shared += admission.answer.shared
                return admission.answer
            if admission.decision is Decision.OVER:
                self.stop.call(ExitCode.BUDGET_REACHED, self._over_message(admission))
            elif admission.decision is Decision.WAIT:
                await self.purse.wait()
            elif admission.decision is Decision.EARLY:
                await self._hold_back(admission.wait_s)
            elif reply is None:
                await self.stop.sleep(POLL_S)
            elif reply.fault is None:
                stored = await self._store(admission, reply)
                self.purse.freed()
                return stored
            else:
                rejection = await self._book(admission, reply, reply.fault)
                self.purse.freed()
                if rejection is not None:
                    return rejection
                failures += 1
                resend = admission.body if may_be_cached(reply, reply.fault) else None
                await self._pause(reply, reply.fault, failures)
            self.stop.check()

    def _over_message(self, admission: Admission) -> str:
        limits, dataset = self.settings.limits, self.settings.dataset
        keys = {
            "run": ("generate.budget_usd", limits.run),
            "account": ("gateway.account_budget_usd", limits.account),
            "dataset": (f"datasets.{dataset}.budget_usd", limits.dataset),
        }
        name, budget = keys[admission.scope]
        unknown = f", of which {dollars(admission.unknown)} is held for lost requests" if admission.unknown else ""
        return (
            f"the budget is reached ({name} is {dollars(budget or 0)}{unknown}; the next request may cost "
            f"{dollars(admission.needed)} more than is left)"
        )

    async def _attempt(
        self, wanted: Wanted, order: tuple[int, ...], path: str, resend: bytes | None
    ) -> tuple[Admission, Reply | None]:
        """One turn through the gate; a reply only when the vault let the request go out. `resend`: the bytes to send
        again as they were."""
        given = await self.gate.acquire(order)
        route, reply = given.route, None
        try:
            body = resend or narrow(wanted.body, route.tags)
            admission = await self.vault.admit(self.job, replace(wanted, body=body), self.settings.limits)
            if admission.decision is not Decision.SEND:
                return admission, None
            self.purse.freed()  # there may be money for one more
            if resend or admission.body != body or (route.probe and body is wanted.body):  # this list has its own tags
                self.gate.breaker.unsent(route)
                route = EVERYWHERE
            reply = await self._send(given.slot, admission, path)
            reply = unlisted(reply, narrowed=admission.body != wanted.body)
            self._heed(reply, route, given.at)
        finally:
            if reply is None:
                self.gate.breaker.unsent(route)
            self.gate.release(given)
        return admission, reply

    async def _send(self, slot: int, admission: Admission, path: str) -> Reply:
        async def note(generation: str) -> None:
            if self.paid:
                await self.vault.commit(lambda c: ledger.note(c, admission.entry, generation))

        settings, began = self.settings, trio.current_time()
        renew = admission.faults > 0 and not admission.lost  # the last reply to these bytes was bad
        self._under_way[admission.entry] = began
        try:
            return await exchange(
                self.clients.of(slot), f"{self.clients.url}/{path}", admission.body,
                headers(settings.gateway, renew=renew),
                Expected(self.providers, settings.gateway, self.paid, settings.thinking, settings.quality),
                Patience(settings.timeout_s, settings.deadline_s), note=note, redact=self.key.redact_bytes,
            )  # fmt: skip
        finally:
            del self._under_way[admission.entry]

    def _heed(self, reply: Reply, route: Route, sent_at: float) -> None:
        """Let the breakers, the limiter or the run know, before the slot goes to somebody else."""
        now = trio.current_time()
        if reply.byok and not self.settings.allow_byok:
            self.stop.call(
                ExitCode.USAGE,
                f"{reply.provider} answered through the account's own provider key, whose bill is not in the reply; "
                "remove that key from the account, or set gateway.allow_byok=true",
            )
        fault = reply.fault
        if fault is None or fault.blame in (Blame.ROW, Blame.PERMANENT):
            self._last_good = now
        elif fault.blame is Blame.RUN:
            self.stop.call(fault.code, f"the gateway ended the run ({self._detail(fault)})")
        self.gate.learn(reply, route, sent_at)
        for note in self.gate.breaker.news():
            print(f"{self.settings.dataset}: endpoint {self.key.redact(note)}", file=sys.stderr, flush=True)

    def _detail(self, fault: Fault) -> str:
        return self.key.redact(f"{fault.reason}: {fault.detail}" if fault.detail else fault.reason)

    async def _store(self, admission: Admission, reply: Reply) -> Answer:
        """Put a usable answer on disk; only then does it count."""
        assert reply.verdict is not None
        source = await self.bills.record(reply.cached_from) if reply.cached_from else None
        usage, generation_id, cost = reply.usage, reply.generation_id, reply.cost
        if source is not None:
            usage, generation_id = source.usage, source.id
        elif cost is None:
            usage, cost = await self.bills.of(reply)
        answer = Answer(
            "", reply.verdict.value, reply.raw, usage, reply.finish_reason, reply.provider, reply.model, generation_id
        )
        if source is not None:
            stored: Answer = await self.vault.commit(
                lambda c: ledger.recover(
                    c, admission.entry, answer, source.cost, source=source.id, free=reply.cost or Decimal(0)
                )
            )
        else:
            final = cost if cost is not None else Decimal(0)
            stored = await self.vault.commit(lambda c: ledger.finish(c, admission.entry, answer, final))
        self.tally.answered(stored.provider, stored.usage, source.cost if source is not None else cost or Decimal(0))
        return stored

    async def _book(self, admission: Admission, reply: Reply, fault: Fault) -> Answer | None:
        """Journal a failed attempt; the rejection when the row is given up. Raises Stopped for a run-level fault."""
        detail = self._detail(fault)
        cost, provider = reply.cost, reply.provider
        if cost is None and reply.generation_id:
            record = await self.bills.record(reply.generation_id)
            if record is not None:
                cost, provider = record.cost, record.provider
        entry, blame = admission.entry, fault.blame.value
        self.tally.failed(provider, fault.reason, cost)
        if cost is None:
            await self.vault.commit(
                lambda c: ledger.lose(c, entry, blame, detail, status=reply.status, generation_id=reply.generation_id)
            )
        else:
            await self.vault.commit(
                lambda c: ledger.fail(
                    c, entry, cost, blame, detail,
                    status=reply.status, generation_id=reply.generation_id, provider=provider,
                )
            )  # fmt: skip
        if fault.blame is Blame.RUN:
            raise Stopped
        last = admission.faults + 1 >= min(self.settings.max_attempts, fault.tries or self.settings.max_attempts)
        if fault.blame is Blame.PERMANENT or (fault.blame is Blame.ROW and last):
            said = reply.raw if reply.status == 200 else None  # it was paid for: somebody may want to see it
            rejected = Answer("", fault.reason, said, Usage(), reply.finish_reason, provider, reply.model)
            self.tally.rejected += 1
            stored: Answer = await self.vault.commit(lambda c: ledger.reject(c, entry, rejected))
            return stored
        now = trio.current_time()
        silent, oldest = now - self._last_good, next(iter(self._under_way.values()), now)
        # A request that has been under way for long may well be answered: a long answer is no dead gateway.
        if silent > self.settings.patience_s and now - oldest < self.settings.patience_s / 2:
            self.stop.call(ExitCode.INCOMPLETE, f"no usable reply for {silent:.0f} s (last: {detail})")
        return None

    async def _hold_back(self, seconds: float) -> None:
        self.tally.held_back += 1
        self.held_back(1)
        try:
            await self.stop.sleep(seconds)
        finally:
            self.tally.held_back -= 1
            self.held_back(-1)

    async def _pause(self, reply: Reply, fault: Fault, failures: int) -> None:
        """Full jitter: rows that failed together do not come back together. An overload of the gateway has its
        cool-down at the gate, one for all rows: none sleeps on its own."""
        if fault.blame is Blame.ROW or (fault.blame is Blame.OVERLOAD and reply.status not in (None, 200)):
            return
        longest = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(failures, 10))
        await self.stop.sleep(self._random.uniform(0, longest))
