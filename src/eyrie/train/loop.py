"""The optimizer loop: deterministic for a thread count, resumable at any step, silent about nothing."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from eyrie.drafter.model import Drafter
from eyrie.errors import ExitCode, EyrieError
from eyrie.train import checkpoint
from eyrie.train.batch import Batch
from eyrie.train.checkpoint import Position
from eyrie.train.loss import step_weights, ttt_sums
from eyrie.train.metrics import Metrics
from eyrie.train.plan import Step

LOG_SECONDS = 10.0


@dataclass(frozen=True)
class Settings:
    """The slice's `train` part; `batch_tokens` counts supervised tokens, `warmup` is a share of `steps`."""

    steps: int
    batch_tokens: int
    ttt_steps: int
    step_decay: float
    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    clip: float
    warmup: float
    seed: int
    checkpoint_every: int
    evaluate_every: int

    def learning_rate(self, step: int) -> float:
        """Of optimizer step `step` (from 0): linear warmup, then linear to 0 after the last step."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * (self.steps - step) / max(1, self.steps - rising)


class Trainer:
    """One run: a drafter, the teacher's head rows, a plan of steps, and the folder that keeps its state."""

    def __init__(
        self,
        drafter: Drafter,
        teacher: Tensor,
        settings: Settings,
        folder: Path,
        load: Callable[[Sequence[int]], Batch],
        evaluate: Callable[[], dict[str, Any]],
    ) -> None:
        """`teacher [D, H]` on the drafter's device; `load` packs train rows, `evaluate` measures the hold-out."""
        self.drafter, self.teacher, self.settings, self.folder = drafter, teacher, settings, folder
        self.load, self.evaluate = load, evaluate
        self.weights = step_weights(settings.ttt_steps, settings.step_decay).to(teacher.device)
        self.parameters = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.lr, betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay, fused=True,
        )  # fmt: skip

    def run(self, plan: Iterator[Step]) -> Position:
        """Train to the last step, from the newest checkpoint if there is one.

        Raises EyrieError at a loss or gradient that is not finite, naming the rows, and when interrupted by SIGINT
        or SIGTERM, after writing a checkpoint.
        """
        threads = torch.get_num_threads()
        position = checkpoint.restore(self.folder, self.drafter, self.optimizer)
        if position is None:
            position = Position(step=0, tokens=0, metrics_bytes=0, threads=threads)
        elif position.step:
            _log(f"continuing after step {position.step} of {self.settings.steps}")
            if position.threads != threads:
                _log(f"{threads} threads now, {position.threads} before: the last bits of the weights may differ")
                position = replace(position, threads=threads)
        metrics = Metrics(
            self.folder / "metrics.jsonl", position.metrics_bytes, self.folder / "tensorboard", position.step
        )
        try:
            with interruptible() as stop:
                return self._steps(plan, position, metrics, stop)
        finally:
            metrics.close()

    def _steps(self, plan: Iterator[Step], position: Position, metrics: Metrics, stop: Interruption) -> Position:
        every, last = self.settings.checkpoint_every, self.settings.steps
        pace = Pace(position, last)
        saved = position.step
        for number, (step, batch) in enumerate(self._batches(plan, position.step), start=position.step + 1):
            tokens = len(batch.slots[0])
            record = self._step(number, step, batch, position.tokens + tokens)
            position = replace(position, step=number, tokens=position.tokens + tokens)
            metrics.write(record, tokens_per_second=pace.rate(position))
            if number % self.settings.evaluate_every == 0 or number == last:
                found = self.evaluate()
                metrics.write({"step": number, "eval": found})
                pace.note = f", hold-out slot mean {found['slot_mean']:.3f}"
            pace.show(position, record["loss"])
            if number % every == 0 or number == last or stop.asked:
                position = replace(position, metrics_bytes=metrics.sync())
                checkpoint.save(self.folder, position, self.drafter, self.optimizer)
                saved = number
            if stop.asked and number < last:
                raise EyrieError(
                    f"stopped after step {number} of {last}; run it again to go on from there",
                    code=ExitCode.INTERRUPTED,
                )
        assert saved == last
        return position

    def _batches(self, plan: Iterator[Step], done: int) -> Iterator[tuple[Step, Batch]]:
        """Steps after the first `done` with their batches; on a GPU the next one is read while this one computes.

        Not on the CPU: a second thread that calls torch has OpenMP threads of its own, and two spinning teams on the
        same cores cost a third of the speed, where reading takes a hundredth.
        """
        ahead = islice(plan, done, None)
        if self.teacher.device.type == "cpu":
            for step in ahead:
                yield step, self.load(step.rows)
            return
        with ThreadPoolExecutor(max_workers=1) as reader:
            waiting = None
            for step in ahead:
                coming = (step, reader.submit(self.load, step.rows))
                if waiting is not None:
                    yield waiting[0], waiting[1].result()
                waiting = coming
            if waiting is not None:
                yield waiting[0], waiting[1].result()

    def _step(self, number: int, step: Step, batch: Batch, tokens: int) -> dict[str, Any]:
        """One optimizer step; its record."""
        rate = self.settings.learning_rate(number - 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = ttt_sums(self.drafter, self.teacher, batch)
        loss = (sums.mean() * self.weights).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip, foreach=True)
        value, length = float(loss.detach()), float(norm)
        if not (math.isfinite(value) and math.isfinite(length)):
            what = f"loss {value}" if not math.isfinite(value) else f"gradient norm {length}"
            raise EyrieError(
                f"step {number}: {what}; rows of this step: {', '.join(batch.ids)}; lower train.lr or look at them"
            )
        self.optimizer.step()
        accuracy = sums.right.double() / sums.slots.clamp(min=1)
        return {
            "step": number,
            "loss": value,
            "loss_step": sums.mean().detach().tolist(),
            "accuracy_step": accuracy.tolist(),
            "lr": rate,
            "gradient_norm": length,
            "tokens": tokens,
            "rows": len(batch.ids),
            "epoch": step.epoch,
        }


class Pace:
    """The live line: where the run stands, its speed in supervised tokens per second, and the time left."""

    def __init__(self, start: Position, last: int) -> None:
        self.start, self.last, self.note = start, last, ""
        self.began = self.shown = time.monotonic()
        self.loss: float | None = None

    def rate(self, position: Position) -> float:
        """Supervised tokens per second since this process began to train."""
        return (position.tokens - self.start.tokens) / max(time.monotonic() - self.began, 1e-9)

    def show(self, position: Position, loss: float) -> None:
        """A line every `LOG_SECONDS` and at the end; the loss is smoothed over about 50 steps."""
        self.loss = loss if self.loss is None else 0.98 * self.loss + 0.02 * loss
        now = time.monotonic()
        if now - self.shown < LOG_SECONDS and position.step < self.last:
            return
        self.shown = now
        seconds = (now - self.began) / (position.step - self.start.step) * (self.last - position.step)
        left = f"{int(seconds) // 60}:{int(seconds) % 60:02d} left" if position.step < self.last else "done"
        _log(
            f"step {position.step}/{self.last}, loss {self.loss:.3f}{self.note}, "
            f"{self.rate(position):.0f} tokens/s, {left}"
        )


class Interruption:
    """Whether a signal has asked the run to stop."""

    asked = False


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """SIGINT and SIGTERM set `asked`, so that the step under way is finished and saved; a second SIGINT kills."""
    state = Interruption()

    def ask(number: int, frame: FrameType | None) -> None:
        if state.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        state.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(text: str) -> None:
    print(f"train: {text}", file=sys.stderr, flush=True)
