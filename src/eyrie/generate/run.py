"""The run loop: conversations in index order, each bought turn by turn, until the dataset is complete or a stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from eyrie.errors import ExitCode, EyrieError
from eyrie.gateway.clients import Clients, allow_open_files
from eyrie.gateway.key import ApiKey
from eyrie.generate.account import Session
from eyrie.generate.breaker import Breaker
from eyrie.generate.buyer import Buyer
from eyrie.generate.conversation import Conversation, take
from eyrie.generate.gate import Gate
from eyrie.generate.limiter import START, Limiter
from eyrie.generate.output import Output
from eyrie.generate.progress import Progress
from eyrie.generate.reconcile import Reconciler, enter
from eyrie.generate.rows import Unit
from eyrie.generate.settings import Settings
from eyrie.generate.stock import Stock
from eyrie.generate.stop import Stopped, StopSign
from eyrie.generate.window import TokenWindow
from eyrie.vault import Vault
from eyrie.vault.account import latencies

HEARTBEAT_S = 0.25  # slots that one job gives back are used by another within two beats
QUEUED = 1.25  # conversations per slot: a free slot finds a row at once, and no more wait than that needs
JUDGED_ROWS = 50  # rows before the share of rejects is looked at
SETTLERS = 16  # lost requests asked after at once
ROOM_BYTES, ROOM_PER_SLOT = 16 << 20, 64 << 10  # left on the vault's disk, a run stops: what is under way must fit


@dataclass
class Run:
    """One process's run over one dataset."""

    vault: Vault
    settings: Settings
    output: Output
    key: ApiKey
    url: str
    stock: Stock
    total: int  # units in the prompts file
    stop: StopSign = field(default_factory=StopSign)
    server_problem: Callable[[], str | None] = lambda: None  # why a server of this job's own is gone
    session: Session | None = None  # what this process did, at the end
    _active: int = 0
    _more: bool = True
    _judged: int = 0
    _rejected: int = 0

    async def main(self) -> StopSign:
        """Buy until nothing is open or the run is stopped; the sign says which. The first signal stops and drains,
        the second cancels what is under way (it becomes unknown in the vault)."""
        settings, began = self.settings, trio.current_time()
        allow_open_files(settings.in_flight)
        self._check_room()
        self.paid = not all(e.is_free for e in self.output.builder.providers.accepted)
        job, reading = enter(self.vault, settings, self.key, read=self.reconciled)
        start = START if settings.gateway == "openrouter" else float(settings.in_flight)
        endpoints = self.output.builder.providers.accepted if settings.gateway == "openrouter" else ()
        self.gate = Gate(
            Limiter(settings.in_flight, start),
            self.stop,
            Breaker(endpoints),
            admitted=lambda order: self.window.sent(order[0]),
        )
        self.window = TokenWindow(settings.token_budget, settings.sampling.max_tokens)
        self.window.tokens, self.window.rows = self.stock.tokens, self.stock.rows
        try:
            async with (
                Clients(self.url, self.key, settings.slots_per_client, settings.timeout_s) as clients,
                trio.open_nursery() as everything,
            ):
                self.buyer = Buyer(
                    self.vault, job, settings, self.output.builder.providers, self.gate, clients, self.stop, self.key,
                    held_back=self._held_back,
                )  # fmt: skip
                progress = Progress(settings.dataset, self.total, self.buyer, self.window, lambda: self._judged)
                await self._lease(job)
                reconciler = Reconciler(self.vault, settings, self.key, self.url, job, reading, self.stop)
                everything.start_soon(self._keep_lease, job)
                everything.start_soon(self.buyer.purse.pump)
                everything.start_soon(self.gate.pump)
                everything.start_soon(progress.show)
                everything.start_soon(self._watch_server)
                await everything.start(self._heed_signals, everything.cancel_scope)
                await self._settle_lost()
                if self.reconciled:
                    await reconciler.at_start()
                async with trio.open_nursery() as conversations:
                    await self._dispatch(conversations)
                await self._settle_lost()  # what this run lost may be known by now
                if self.reconciled and not self.stop.called:
                    await reconciler.at_end()
                everything.cancel_scope.cancel()
            print(progress.snapshot().line(), file=sys.stderr, flush=True)
        except Stopped:
            pass
        finally:
            self._end(job)
        model, tally = self.output.builder.identity_model, self.buyer.tally
        latency = latencies(self.vault.query, model, settings.dataset, job)
        self.session = Session(trio.current_time() - began, tally, latency, self.buyer.paid)
        return self.stop

    @property
    def reconciled(self) -> bool:
        """Whether the gateway keeps an account that can be asked."""
        return self.settings.gateway == "openrouter" and self.paid

    def _end(self, job: int) -> None:
        try:
            self.vault.end(job)
        except EyrieError as error:  # a later job buries this one
            self.stop.call(error.code, str(error))

    def _check_room(self) -> None:
        """Stop while the vault's disk can still take what is under way."""
        needed = ROOM_BYTES + ROOM_PER_SLOT * self.settings.in_flight
        if (free := self.vault.free_bytes()) < needed:
            self.stop.call(
                ExitCode.MISSING,
                f"{self.vault.path.parent}: {free / 1e6:.0f} MB are free, and {needed / 1e6:.0f} MB must be to keep "
                f"what {self.settings.in_flight} requests under way bring; free space",
            )

    # Rows ------------------------------------------------------------------------------------------------------

    async def _dispatch(self, conversations: trio.Nursery) -> None:
        """Start conversations in index order; a task claims its place before the next one starts."""
        for number, stocked in enumerate(self.stock, self.stock.rows):
            if stocked.tokens is not None:
                self.window.held(stocked.tokens)
                continue
            while not (self.window.open and self._active < QUEUED * max(self.gate.leased, 1) + 4):
                if self.window.reached or self.stop.called:
                    break
                await self.window.changed()
            if self.window.reached or self.stop.called:
                break
            self.window.begin(number)
            self._active += 1
            await conversations.start(self._converse, stocked.unit, number)
        self._more = False

    def _held_back(self, change: int) -> None:
        """Rows that wait for a lost request's time to pass leave their place to others."""
        self._active -= change
        self.window.wake()

    async def _converse(self, unit: Unit, number: int, task_status: trio.TaskStatus[None]) -> None:
        talk = Conversation.start(unit.row, self.settings.user_turns, self.settings.max_pieces)
        tokens, started = 0, False
        try:
            while talk.ended is None:
                identity = self.output.identity(unit, talk.turn)
                request = talk.request(self.output.builder, unit.repetition)
                answer = self.vault.answer(identity)
                same = answer is not None and answer.fingerprint == request.fingerprint
                if answer is None or not (same or (answer.is_data and not self.settings.rebuy)):
                    if not started:
                        task_status.started()
                        started = True
                    answer = await self.buyer.get(identity, request, (number, talk.turn))
                tokens += take(talk, answer, drop_cut=self.settings.drop_cut)
            self._judge(talk)
            self.window.end(number, tokens)
        except Stopped:
            self.window.abandon(number)
        except EyrieError as error:  # the vault cannot be written: what is under way may still find room
            self.stop.call(error.code, str(error))
            self.gate.serve()
            self.window.abandon(number)
        finally:
            if not started:
                task_status.started()
            self._active -= 1

    def _judge(self, talk: Conversation) -> None:
        self._judged += 1
        self._rejected += not talk.answered_at
        share = self._rejected / self._judged
        if self._judged >= JUDGED_ROWS and share > self.settings.max_reject_share:
            self.stop.call(
                ExitCode.TOO_MANY_REJECTS,
                f"{self._rejected} of {self._judged} rows gave no usable answer (last: {talk.ended}); "
                f"generate.max_reject_share is {self.settings.max_reject_share}",
            )

    # Beside the rows -------------------------------------------------------------------------------------------

    async def _lease(self, job: int) -> None:
        more = self._more and self.window.open  # rows that fill the budget in any case leave their slots to others
        wanted = self.settings.in_flight if more else self.gate.wanted
        gate = self.gate
        # The vault lends to others what is not busy, so until its word is on disk no more may be than it was told.
        gate.cap = min(gate.leased, max(gate.busy, min(wanted, gate.busy + 4 + gate.leased // 8)))
        gate.leased = await self.vault.renew(job, wanted=wanted, busy=gate.cap, in_flight=self.settings.in_flight)
        gate.cap = gate.leased
        self.gate.serve()

    async def _keep_lease(self, job: int) -> None:
        while True:
            await trio.sleep(HEARTBEAT_S)
            try:
                self._check_room()
                await self._lease(job)
            except EyrieError as error:
                self.stop.call(error.code, str(error))
            if self.stop.called:
                self.gate.serve()

    async def _watch_server(self) -> None:
        """A server of this job's own that ends takes the run with it at once: nobody will start it again."""
        while (problem := self.server_problem()) is None:
            await trio.sleep(HEARTBEAT_S)
        self.stop.call(ExitCode.INCOMPLETE, problem)
        self.gate.serve()

    async def _heed_signals(self, scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self.stop.code is ExitCode.INTERRUPTED:
                    scope.cancel()
                    return
                self.stop.call(ExitCode.INTERRUPTED, "interrupted")
                self.gate.serve()
                print(
                    f"{self.settings.dataset}: stopping; {self.gate.busy} requests under way are awaited, since they "
                    "are billed anyway (again: abort them)",
                    file=sys.stderr, flush=True,
                )  # fmt: skip

    async def _settle_lost(self) -> None:
        """Free the worst cases that earlier crashes left reserved, as far as the gateway knows what they cost."""
        lost = self.vault.lost(self.settings.account) if self.buyer.paid else []
        if not lost:
            return
        async with trio.open_nursery() as nursery:
            for first in range(min(SETTLERS, len(lost))):
                nursery.start_soon(self.buyer.bills.settle, lost[first::SETTLERS])
