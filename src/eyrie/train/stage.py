"""The train stage: find the run in the store, or train it there, then put its drafter where the rule wants it."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from eyrie.drafter.export import export, install
from eyrie.drafter.load import target_text_config
from eyrie.drafter.rules import WEIGHTS
from eyrie.errors import InputError, MissingError
from eyrie.files import atomic_path, fingerprint, read_json, sha256_file, write_json
from eyrie.shards.corpus import CorpusRow
from eyrie.target import TargetReceipt
from eyrie.train import holdout, plan
from eyrie.train.batch import Batch, pack
from eyrie.train.copying import Sample, sample_of
from eyrie.train.data import Data, name
from eyrie.train.loop import Settings, Trainer
from eyrie.train.start import check_states, start

VERSION = "eyrie-train-3"  # bump when the same inputs train other weights
FREE = ("checkpoint_every",)  # settings that change no byte of the result
SAMPLED = 12_288  # tokens that copying heads are fitted to; never fewer than twice the target's width
CHECKED = 64  # tokens of the first row whose stored states are compared with the target's head


@dataclass(frozen=True)
class Inputs:
    """What a run is made from: folders as the rule gives them."""

    target: TargetReceipt
    corpus: Path
    tokens: Sequence[Path]
    hidden: Sequence[Path]


def run_key(slice_: dict[str, Any], inputs: Inputs) -> str:
    """Identity of a run in the store: its settings, its data by hash, its target, and this code's format."""
    settings = {key: value for key, value in slice_["train"].items() if key not in FREE}
    hidden = {folder.name: sha256_file(folder / "manifest.json") for folder in inputs.hidden}
    corpus = sha256_file(inputs.corpus / "manifest.json")
    return fingerprint(
        VERSION,
        settings,
        slice_["drafter"],
        slice_["target"]["context_length"],
        inputs.target.fingerprint,
        corpus,
        hidden,
    )


def train(slice_: dict[str, Any], inputs: Inputs, data: Data, *, store: Path, gpus: int) -> Path:
    """The folder of the finished run: `drafter/`, `metrics.jsonl`, `done.json`. Trains what is missing of it.

    Two processes never train one run: the second waits and finds it finished.
    """
    entry = store / run_key(slice_, inputs)
    entry.mkdir(parents=True, exist_ok=True)
    with exclusive(entry / "lock"):
        if finished(entry):
            print(f"train: {entry} is finished; exporting it", file=sys.stderr)
        else:
            _train(slice_, inputs, data, entry, device(gpus))
    return entry


def _train(slice_: dict[str, Any], inputs: Inputs, data: Data, entry: Path, where: torch.device) -> None:
    settings = Settings(**{field.name: slice_["train"][field.name] for field in fields(Settings)})
    rows, held = data.rows("train"), data.rows("holdout")
    for split, found in (("train", rows), ("holdout", held)):
        if not found:
            raise InputError(
                f"{inputs.corpus}: no row of the {split} split trains a slot; generate more or longer answers"
            )
    text = target_text_config(inputs.target)
    begin = start(
        inputs.target, text, slice_["drafter"], context_length=slice_["target"]["context_length"],
        aux=data.aux,
        d2t=torch.from_numpy(data.corpus.d2t), t2d=torch.from_numpy(data.corpus.t2d), seed=settings.seed,
        sample=lambda: fitted_to(data, rows),
    )  # fmt: skip
    for row in {row.dataset: row for row in rows}.values():
        states = data.states(row)
        parts = (part[:CHECKED] for part in (states.final, states.argmax, states.logsumexp))
        check_states(begin.head, *parts, str(data.sources[row.dataset].hidden.folder))
    drafter, teacher = begin.drafter.to(where), begin.teacher.to(where)
    del begin

    def load(chosen: Sequence[CorpusRow]) -> Batch:
        return pack(data.read_all(chosen), settings.ttt_steps).to(where, torch.float32)

    sample = plan.order([name(row) for row in held], seed=0, epoch=0)[: holdout.ROWS]
    trainer = Trainer(
        drafter, teacher, settings, entry,
        load=lambda indices: load([rows[index] for index in indices]),
        evaluate=lambda: holdout.measure(drafter, (load([held[index]]) for index in sample)),
    )  # fmt: skip
    steps = plan.steps(
        [name(row) for row in rows], [row.trained for row in rows],
        batch_tokens=settings.batch_tokens, seed=settings.seed, count=settings.steps,
    )  # fmt: skip
    position = trainer.run(steps)
    export(drafter, entry / "drafter", text)
    names = ("metrics.jsonl", "drafter/config.json", f"drafter/{WEIGHTS}")
    write_json(entry / "done.json", {"format": VERSION, "files": {name: sha256_file(entry / name) for name in names}})
    print(
        f"train: {position.step} steps, {position.tokens} supervised tokens of {len(rows)} rows, "
        f"{len(held)} rows held out",
        file=sys.stderr,
    )


def fitted_to(data: Data, rows: Sequence[CorpusRow]) -> Sample:
    """What copying heads are fitted to: train rows in an order of their own, until there are enough tokens."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    tokens = wanted = 0
    for index in plan.order([name(row) for row in rows], seed=0, epoch=0):
        if found and tokens >= wanted:
            break
        example = data.read(rows[index])
        wanted = max(SAMPLED, 2 * example.final.shape[-1])
        found.append((example.tokens, example.aux))
        tokens += len(example.tokens)
    return sample_of(found)


def finished(entry: Path) -> bool:
    """Whether the run's files are all there and unchanged."""
    path = entry / "done.json"
    if not path.is_file():
        return False
    files = read_json(path)["files"]
    return all((entry / name).is_file() and sha256_file(entry / name) == digest for name, digest in files.items())


def deliver(entry: Path, output: Path, metrics: Path) -> None:
    """Copy a finished run's drafter and metrics to the rule's paths."""
    output.mkdir(parents=True, exist_ok=True)
    install(entry / "drafter", output)
    with atomic_path(metrics) as temporary:
        shutil.copyfile(entry / "metrics.jsonl", temporary)


def device(gpus: int) -> torch.device:
    """Where to train. Raises MissingError when a GPU was asked for and there is none."""
    if gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingError(
            f"training was given {gpus} GPUs, but torch sees none; set resources.train.gpu=0 to use the CPU"
        )
    if gpus > 1:
        print(f"train: using one of {gpus} GPUs; this version trains on a single one", file=sys.stderr)
    return torch.device("cuda")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the run's lock; it goes with the process, however that ends."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"train: another process holds {path}; waiting for it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
