"""Measure a drafter's acceptance length (tokens per pass of the target), and prove that decoding stays lossless.

Three figures per set, never mixed:

  slot mean      1 + the chance that a chain of drafts is right, averaged over all held-out positions; shows training
  chain replay   the passes a server would make, walked along the recorded greedy text; any chain length, no decode
  decode         real greedy speculative decoding with KV caches, at evaluate.chain_length

The sets are the hold-out (prompts exactly as they were served) and every benchmark, an own prompt file that nothing
was trained on. Each prompt is also decoded plainly; one token of difference fails the job and leaves no file.

  eyrie evaluate --slice "$(eyrie config --slice evaluate)" --target results/laptop/target.json \\
      --drafter results/laptop/drafter --corpus results/laptop/corpus \\
      --tokens results/laptop/tokens/* --hidden results/laptop/hidden/* \\
      --benchmarks humaneval=results/laptop/prompts/humaneval.jsonl.zst --output results/laptop/evaluation.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.config import load_slice
from eyrie.errors import InputError, MissingError
from eyrie.files import sha256_file, write_json
from eyrie.threads import add_argument, set_threads

if TYPE_CHECKING:
    from eyrie.drafter.model import Drafter
    from eyrie.evaluate.engine import TargetEngine
    from eyrie.evaluate.greedy import Prompt
    from eyrie.evaluate.measure import SetMeasure
    from eyrie.evaluate.sets import HoldOut
    from eyrie.target import TargetReceipt

FORMAT = "eyrie-evaluation-1"
SLOT_ROWS = 1024  # held-out rows of the slot mean: half a million slots and more, whatever the corpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice evaluate`")
    parser.add_argument("--target", required=True, type=Path, metavar="FILE", help="target.json")
    parser.add_argument("--drafter", required=True, type=Path, metavar="DIR", help="the exported drafter")
    parser.add_argument("--corpus", required=True, type=Path, metavar="DIR", help="which rows are held out")
    parser.add_argument("--tokens", required=True, type=Path, nargs="+", metavar="DIR", help="one folder per dataset")
    parser.add_argument("--hidden", required=True, type=Path, nargs="+", metavar="DIR", help="one folder per dataset")
    parser.add_argument("--benchmarks", nargs="*", default=[], metavar="NAME=FILE", help="prompt files beside it")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="evaluation.json")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="0: evaluate on the CPU (default)")
    add_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure every set and write evaluation.json; raises EyrieError when a decode is not lossless."""
    began = time.monotonic()
    slice_ = load_slice(args.slice)
    benchmarks = _named(args.benchmarks)
    device = _device(args.gpus)
    set_threads(args.threads)

    import torch

    from eyrie.chat import end_token_ids
    from eyrie.drafter import load_drafter
    from eyrie.evaluate.measure import SetMeasure, Settings
    from eyrie.evaluate.sets import HoldOut, benchmark
    from eyrie.shards.corpus import read_corpus
    from eyrie.target import load_receipt, load_tokenizer

    receipt = load_receipt(args.target)
    dtype, trust = slice_["target"]["dtype"], slice_["target"]["trust_remote_code"]
    tokenizer = load_tokenizer(receipt, trust)
    drafter = load_drafter(args.drafter, receipt, getattr(torch, dtype)).to(device)
    settings = Settings.of(slice_["evaluate"], end_token_ids(tokenizer))
    held = HoldOut(
        read_corpus(args.corpus), args.tokens, args.hidden,
        target=receipt.fingerprint, aux=drafter.config.aux, dtype=getattr(torch, dtype), device=device,
    )  # fmt: skip
    thinking = slice_["target"].get("thinking")
    asked = {name: benchmark(name, path, tokenizer, settings.rows, thinking) for name, path in benchmarks.items()}
    engine = load_engine(receipt, drafter, dtype, trust, device)
    _log(f"target {receipt.name} on {type(engine).__name__}, {len(held)} held-out rows, ready in {_since(began)}")

    sets = {"holdout": _holdout(SetMeasure("holdout", engine, drafter, settings, _log), held)}
    for name, prompts in asked.items():
        sets[name] = _benchmark(SetMeasure(name, engine, drafter, settings, _log), prompts)
    compared = sum(figures["tokens"] for figures in sets.values())
    write_json(
        args.output,
        {
            "format": FORMAT,
            "chain_length": settings.chain,
            "max_new_tokens": settings.max_new,
            "target": receipt.fingerprint,
            "drafter": sha256_file(args.drafter / "model.safetensors"),
            "sets": sets,
            "lossless": True,  # SetMeasure.decode raises otherwise
            "compared_tokens": compared,
        },
    )
    _log(f"lossless: {compared} tokens compared in {len(sets)} sets; {args.output} in {_since(began)}")
    return 0


def _holdout(measure: SetMeasure, held: HoldOut) -> dict[str, Any]:
    """Estimates from the captured states of the hold-out, and its prompts decoded."""
    prompts = measure.fitting(held.prompts(SLOT_ROWS))
    began = time.monotonic()
    decoded = set(prompts)
    for text in held.texts(SLOT_ROWS):
        # Only what is decoded is replayed: the two figures speak of the same answers.
        measure.estimate(text, replayed=text.prompt in decoded)
    _log(f"holdout: estimates over {measure.total.slots.count} slots in {_since(began)}")
    measure.decode(prompts)
    return measure.report(per_dataset=True)


def _benchmark(measure: SetMeasure, prompts: list[Prompt]) -> dict[str, Any]:
    """A benchmark has no recorded text: its estimates come from the plain greedy answers and the states behind."""
    for text in measure.decode(measure.fitting(prompts), keep_states=True):
        measure.estimate(text, replayed=True)
    return measure.report()


def load_engine(
    receipt: TargetReceipt, drafter: Drafter, dtype: str, trust_remote_code: bool, device: str
) -> TargetEngine:
    """The packed CPU engine for plain Llama targets in float32, else transformers."""
    from eyrie.evaluate.packed_engine import PackedEngine
    from eyrie.evaluate.transformers_engine import TransformersEngine
    from eyrie.target import load_model
    from eyrie.target.llama import Llama, check_supported
    from eyrie.target.receipt import read_config

    if device == "cpu" and dtype == "float32":
        try:
            check_supported(read_config(receipt), receipt.path)
        except InputError as reason:
            _log(f"transformers runs the target: {reason}")
        else:
            return PackedEngine(Llama.load(receipt.path), drafter.config.aux.hf)
    model = load_model(receipt, dtype, trust_remote_code)
    return TransformersEngine(model.to(device), drafter.config.aux.hf)


def _named(pairs: list[str]) -> dict[str, Path]:
    """`NAME=FILE` arguments in order of name. Raises InputError on anything else, or a name given twice."""
    found: dict[str, Path] = {}
    for pair in pairs:
        name, sign, path = pair.partition("=")
        if not sign or not name or not path:
            raise InputError(f"--benchmarks {pair}: must be NAME=FILE")
        if name in found or name == "holdout":
            raise InputError(f"--benchmarks {pair}: the name {name} is taken")
        found[name] = Path(path)
    return dict(sorted(found.items()))


def _device(gpus: int) -> str:
    """Where to compute. Raises MissingError when the GPUs asked for are not here."""
    if gpus == 0:
        return "cpu"
    import torch

    have = torch.cuda.device_count()
    if have < gpus:
        raise MissingError(f"evaluation asks for {gpus} GPUs and this machine shows {have}; set resources.evaluate.gpu")
    if gpus > 1:
        raise MissingError(
            f"evaluation runs the target on one GPU, not {gpus}; set resources.evaluate.gpu=1 for a target that fits"
        )
    return "cuda"


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def _log(line: str) -> None:
    print(f"evaluate: {line}", file=sys.stderr, flush=True)
