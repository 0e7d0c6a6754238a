"""Continuous batching: one thread decodes all rows in step; finished rows leave and waiting ones take their slots.

Every answer is a function of its request alone. A prompt is prefilled by itself in fixed chunks, decode rows are
independent of their neighbours (see `eyrie.target.llama`), and each sampling row draws from its own generator. So a
resumed run gets the same bytes although its requests meet in another order.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyrie.gateway.embedded.sampling import Sampling, draw
from eyrie.target.llama import Llama, LlamaCache

PREFILL_CHUNK = 512  # prompt tokens per forward pass, counted from the prompt's start
FIRST_LENGTH = 512  # cache positions per row at first; grows with the longest row
STEP_ROWS = 8  # decode rows are rounded up to a multiple of this
PATIENCE = 30.0  # seconds after which a waiting request goes first


@dataclass(eq=False)
class Job:
    """One completion to make. The engine fills `ids` and `finish_reason`; others only read them after `notify`.

    `notify(job)` is called from the engine's thread after each step in which the job got tokens or ended; it ended
    when `finish_reason` (stop, length) or `error` is set.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling
    notify: Callable[[list[Job]], None]
    stop: tuple[str, ...] = ()
    ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    cancelled: bool = False
    arrived: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(eq=False)
class _Row:
    """A job in a slot: `length` tokens are cached, the last generated one not yet among them."""

    job: Job
    length: int
    generator: torch.Generator | None


class Engine:
    """The decode loop over one model. Thread-safe: `submit`, `cancel`, `close`."""

    def __init__(
        self,
        model: Llama,
        end_ids: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        *,
        width: int,
        context: int,
    ) -> None:
        """`end_ids` end a turn, `decode` gives text (for stop strings), `width` rows at most are decoded together,
        `context` bounds prompt and answer together, in tokens."""
        self.model, self.end_ids, self.decode = model, end_ids, decode
        self.width, self.context = width, context
        self.step_rows = STEP_ROWS if rows_are_independent(model, width) else width
        self.cache: LlamaCache = model.new_cache(width, min(FIRST_LENGTH, context))
        self.rows: list[_Row | None] = [None] * width
        self.waiting: list[Job] = []
        self._live: set[Job] = set()  # submitted and not yet reported as ended
        self.generated = self.steps = self.prefilled = 0  # tokens, decode steps, prompt tokens
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises RuntimeError once the engine has stopped."""
        if not job.prompt or len(job.prompt) + job.max_tokens > self.context:
            raise ValueError(f"{len(job.prompt)} prompt and {job.max_tokens} new tokens do not fit {self.context}")
        with self._changed:
            if self._closed:
                raise RuntimeError("the decode engine has stopped")
            self.waiting.append(job)
            self._live.add(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job nobody waits for; its row is free before the next step."""
        job.cancelled = True

    def close(self) -> None:
        """Stop the thread after its current step."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                touched = self._admit()
                self._close_gaps()
                touched += self._step()
                self._live.difference_update(job for job in touched if job.ended)
                for notify in {job.notify for job in touched}:
                    notify([job for job in touched if job.notify == notify])
        except Exception as error:
            traceback.print_exc()
            with self._changed:
                self._closed = True
            for job in self._live:
                if not job.ended:
                    job.error = f"{type(error).__name__}: {error}"
                job.notify([job])

    def _wait_for_work(self) -> bool:
        """Drop cancelled jobs, then block until there is something to do; False when closed."""
        with self._changed:
            self.rows = [None if row and row.job.cancelled else row for row in self.rows]
            self.waiting = [job for job in self.waiting if not job.cancelled]
            self._live = {job for job in self._live if not job.cancelled}
            while not (self._closed or self.waiting or any(self.rows)):
                self._changed.wait()
            return not self._closed

    def _next_job(self) -> Job | None:
        """Longest first, which leaves short ones to fill the end; but nobody waits much longer than PATIENCE."""
        with self._changed:
            if not self.waiting:
                return None
            oldest = self.waiting[0]
            overdue = time.monotonic() - oldest.arrived > PATIENCE
            job = oldest if overdue else max(self.waiting, key=lambda j: len(j.prompt) + j.max_tokens)
            self.waiting.remove(job)
            return job

    def _admit(self) -> list[Job]:
        """Prefill waiting jobs into free slots; each gets its first token here."""
        touched = []
        for slot in range(self.width):
            while self.rows[slot] is None and (job := self._next_job()):
                row = _Row(job, 0, job.sampling.generator())
                logits = self._prefill(job.prompt, slot)
                row.length = len(job.prompt)
                self._accept(row, logits, int(logits.argmax()))
                self.rows[slot] = None if job.ended else row
                touched.append(job)
        return touched

    def _prefill(self, prompt: Sequence[int], slot: int) -> Tensor:
        """Fill the slot's cache with the prompt; logits [V] behind its last token."""
        self._make_room(len(prompt))
        view, ids = self.cache.rows(slot, slot + 1), torch.tensor([list(prompt)])
        for start in range(0, len(prompt), PREFILL_CHUNK):
            final, _ = self.model.forward(ids[:, start : start + PREFILL_CHUNK], torch.tensor([start]), view)
        self.prefilled += len(prompt)
        return self.model.logits(final[0, -1:])[0]

    def _make_room(self, length: int) -> None:
        """Grow the cache to hold rows of `length` tokens; doubled, since growing copies it."""
        if length > self.cache.max_len:
            self.cache = self.cache.resized(min(max(length, 2 * self.cache.max_len), self.context))

    def _close_gaps(self) -> None:
        """Keep the active rows in the first slots, so that a step computes no more rows than it must."""
        last = self.width - 1
        for slot in range(self.width):
            while last > slot and self.rows[last] is None:
                last -= 1
            row = self.rows[last]
            if self.rows[slot] is None and last > slot and row:
                self.cache.copy_row(last, slot, row.length)
                self.rows[slot], self.rows[last] = row, None

    def _step(self) -> list[Job]:
        """One token for every active row."""
        active = [row for row in self.rows if row]
        if not active:
            return []
        self._make_room(max(row.length for row in active) + 1)
        size = min(-(-len(active) // self.step_rows) * self.step_rows, self.width)
        ids = torch.zeros(size, 1, dtype=torch.int64)
        lengths = torch.zeros(size, dtype=torch.int64)
        ids[: len(active), 0] = torch.tensor([row.job.ids[-1] for row in active])
        lengths[: len(active)] = torch.tensor([row.length for row in active])
        final, _ = self.model.forward(ids, lengths, self.cache)
        logits = self.model.logits(final[:, 0])
        greedy = logits.argmax(-1).tolist()
        for slot, row in enumerate(active):
            row.length += 1
            self._accept(row, logits[slot], greedy[slot])
            if row.job.ended:
                self.rows[slot] = None
        self.steps += 1
        return [row.job for row in active]

    def _accept(self, row: _Row, logits: Tensor, greedy: int) -> None:
        """Append the row's next token and say truthfully whether it ended there."""
        job = row.job
        token = greedy if row.generator is None else draw(logits, job.sampling, row.generator)
        job.ids.append(token)
        self.generated += 1
        if token in self.end_ids or (job.stop and self._stopped(job)):
            job.finish_reason = "stop"
        elif len(job.ids) >= job.max_tokens:
            job.finish_reason = "length"

    def _stopped(self, job: Job) -> bool:
        """Whether a stop string is complete. A token is at least a byte, so the last few tokens hold its end."""
        tail = max(len(text.encode()) for text in job.stop) + 4
        return any(text in self.decode(job.ids[-tail:]) for text in job.stop)


@torch.inference_mode()
def rows_are_independent(model: Llama, width: int) -> bool:
    """Whether this machine's products give a row the same bits at every row count that a step may use.

    They do where each output is accumulated in a fixed order over the inner dimension; asked rather than assumed,
    since the kernels are chosen by CPU. If not, every step computes `width` rows.
    """
    layer = model.layers[0]
    random = torch.Generator().manual_seed(0)
    for product in (layer.qkv, layer.out, layer.gate, layer.down, model.lm_head):
        x = torch.randn(width, product.in_features, generator=random)
        whole = product(x)
        for rows in range(STEP_ROWS, width, STEP_ROWS):
            if not torch.equal(product(x[:rows].contiguous()), whole[:rows]):
                return False
    return True
