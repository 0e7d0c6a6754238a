"""The model behind the server: loaded on the first completion, asked through one coroutine per answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from eyrie.gateway.embedded.protocol import ChatRequest, ProtocolError, Served, context_error
from eyrie.target.receipt import TargetReceipt

if TYPE_CHECKING:
    from eyrie.gateway.embedded.engine import Engine, Job


@dataclass(frozen=True)
class Loaded:
    """A model ready to answer."""

    engine: Engine
    tokenizer: Any
    end_ids: frozenset[int]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are control, not text, as other servers have it."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def load(receipt: TargetReceipt, served: Served, width: int, threads: int, trust_remote_code: bool) -> Loaded:
    """Tokenizer, packed weights and decode thread. Seconds.

    In a thread that ends with it: the OpenMP team of a thread lives as long as the thread, and while there are more
    OpenMP threads than cores none of them spins, which doubles the time of a decode step.
    """
    with ThreadPoolExecutor(max_workers=1) as brief:
        return brief.submit(_load, receipt, served, width, threads, trust_remote_code).result()


def _load(receipt: TargetReceipt, served: Served, width: int, threads: int, trust_remote_code: bool) -> Loaded:
    from eyrie.threads import set_threads

    set_threads(threads)  # before torch is imported: OpenMP reads its settings once

    from eyrie.chat import end_token_ids
    from eyrie.gateway.embedded.engine import Engine
    from eyrie.target.llama import Llama
    from eyrie.target.loading import load_tokenizer

    tokenizer = load_tokenizer(receipt, trust_remote_code)
    end_ids = frozenset(end_token_ids(tokenizer))
    model = Llama.load(receipt.folder)

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=True)

    return Loaded(Engine(model, end_ids, decode, width=width, context=served.context), tokenizer, end_ids)


class Service:
    """Answers chat requests. All methods run in the server's trio thread."""

    def __init__(
        self, receipt: TargetReceipt, served: Served, *, width: int, threads: int, trust_remote_code: bool = False
    ) -> None:
        self._arguments = (receipt, served, width, threads, trust_remote_code)
        self.served = served
        self._loaded: Loaded | None = None
        self._loading = trio.Lock()
        self._jobs: dict[Job, trio.Event] = {}

    async def ready(self) -> Loaded:
        """The model, loaded once however many requests wait for it."""
        async with self._loading:
            if self._loaded is None:
                self._loaded = await trio.to_thread.run_sync(load, *self._arguments)
        return self._loaded

    def prompt_ids(self, loaded: Loaded, request: ChatRequest) -> list[int]:
        """The rendered prompt. Raises ProtocolError (400) when the template refuses the messages."""
        from eyrie.chat import render_prompt
        from eyrie.errors import InputError

        try:
            return render_prompt(loaded.tokenizer, request.messages, request.tools, request.thinking)
        except InputError as error:
            raise ProtocolError(400, str(error), "invalid_request") from None
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ProtocolError(400, f"messages cannot be rendered: {error}", "invalid_request") from None

    async def answer(self, request: ChatRequest) -> tuple[Loaded, Job]:
        """Queue the request; follow it with `progress`. Raises ProtocolError when it cannot be answered."""
        from eyrie.gateway.embedded.engine import Job
        from eyrie.gateway.embedded.sampling import Sampling

        loaded = await self.ready()
        prompt = self.prompt_ids(loaded, request)
        room = self.served.context - len(prompt)
        wanted = request.max_tokens if request.max_tokens is not None else max(room, 1)
        if wanted > room:
            raise context_error(self.served, len(prompt), wanted)
        sampling = Sampling(request.temperature, request.top_p, request.top_k, request.seed)
        token = trio.lowlevel.current_trio_token()
        job = Job(prompt, wanted, sampling, _Notify(token, self._wake), request.stop)
        self._jobs[job] = trio.Event()
        try:
            loaded.engine.submit(job)
        except RuntimeError as error:
            del self._jobs[job]
            raise ProtocolError(500, str(error), "server") from None
        return loaded, job

    async def progress(self, job: Job) -> AsyncIterator[tuple[list[int], str | None]]:
        """Yield the ids so far each time there are more; the last time with the finish reason.

        Close the iterator (`contextlib.aclosing`): that cancels a job that has not ended. Raises ProtocolError when
        the engine failed.
        """
        try:
            while True:
                await self._jobs[job].wait()
                self._jobs[job] = trio.Event()
                finish, ids = job.finish_reason, list(job.ids)  # in this order: the engine sets the reason last
                if job.error:
                    raise ProtocolError(500, f"the model failed: {job.error}", "server")
                yield ids, finish
                if finish:
                    return
        finally:
            del self._jobs[job]
            if not job.ended and self._loaded:
                self._loaded.engine.cancel(job)

    def _wake(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job in self._jobs:
                self._jobs[job].set()

    def close(self) -> None:
        """Stop the decode thread."""
        if self._loaded:
            self._loaded.engine.close()


@dataclass(frozen=True)
class _Notify:
    """Called in the engine's thread; wakes the waiting coroutines in the server's, once per step for all of them.

    Equal for all jobs of one service, so that the engine groups them.
    """

    token: trio.lowlevel.TrioToken
    wake: Any

    def __call__(self, jobs: list[Job]) -> None:
        try:
            self.token.run_sync_soon(self.wake, jobs)
        except trio.RunFinishedError:
            pass  # the server has ended; nobody waits for these tokens
