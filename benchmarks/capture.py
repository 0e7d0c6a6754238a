"""Capture's speed against the engine's bare forward pass over the same rows, and the padding it computes.

The bare pass runs the same batches through the decoder and the head and keeps nothing; the capture stage also takes
the aux states, reduces the logits, compresses, checksums, writes, syncs and links. Wanted: overhead at most 5 %,
padded over real tokens at most 1.05. CPU seconds are given beside wall seconds, since they hardly feel other work on
the machine.

  python benchmarks/capture.py --target results/laptop/target.json --tokens results/laptop/tokens/demo_code
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from eyrie import threads
from eyrie.capture.batches import plan
from eyrie.capture.engine import Settings
from eyrie.capture.stage import Capture, Counts
from eyrie.capture.transformers_engine import TransformersEngine
from eyrie.shards.tokens import TokenRow, read_manifest, write_manifest, write_shard
from eyrie.target import TargetReceipt, load_receipt

# Medians and spreads (of a log-normal) of chat-like and reasoning-like rows, in tokens.
MIXES = {"chat": (300, 0.8), "reasoning": (1500, 0.9)}


def lengths_of(mix: str, rows: int, longest: int) -> list[int]:
    median, spread = MIXES[mix]
    drawn = np.random.default_rng(0).lognormal(np.log(median), spread, rows)
    return np.clip(drawn, 16, longest).astype(int).tolist()


def make_rows(args: argparse.Namespace, vocab: int) -> list[np.ndarray]:
    """The first rows of a token folder, or random ids of chat-like lengths, up to `--total` tokens."""
    if args.tokens:
        manifest = read_manifest(args.tokens)
        shards = [manifest.read(entry) for entry in manifest.shards]
        rows = [shard.row(i).input_ids for shard in shards for i in range(len(shard))]
    else:
        random = np.random.default_rng(1)
        rows = [random.integers(0, vocab, n).astype(np.int32) for n in lengths_of("chat", 1000, 2048)]
    ends = np.cumsum([len(row) for row in rows])
    return rows[: max(1, int(np.searchsorted(ends, args.total)))]


def write_tokens(folder: Path, rows: list[np.ndarray], receipt: TargetReceipt) -> None:
    entry = write_shard(
        folder / "00000.parquet",
        [TokenRow(str(i), i, 1, row, [(1, len(row))]) for i, row in enumerate(rows)],
        target=receipt.fingerprint,
    )
    write_manifest(
        folder, dataset="bench", target=receipt.fingerprint, slice={}, shards=[entry], dropped={}, counted={}
    )


class Kept:
    """An engine that a stage cannot close: one load serves all repeats."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.capture = engine.capture

    def close(self) -> None:
        """Keep it open."""


@torch.inference_mode()
def bare(engine: TransformersEngine, rows: list[np.ndarray], budget: int) -> None:
    """Decoder and head over the same batches, the head on real positions only; nothing is kept."""
    for batch in plan([len(row) for row in rows], budget):
        ids = torch.zeros(len(batch.rows), batch.length, dtype=torch.int64)
        for i, row in enumerate(batch.rows):
            ids[i, : len(rows[row])] = torch.from_numpy(rows[row].astype(np.int64))
        final = engine.decoder(input_ids=ids, use_cache=False).last_hidden_state
        real = torch.cat([final[i, : len(rows[row])] for i, row in enumerate(batch.rows)])
        for part in real.split(256):
            F.linear(part, engine.head)


def timed(work: Any, *args: Any) -> tuple[float, float, Any]:
    """Wall seconds, CPU seconds, result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work(*args)
    return time.perf_counter() - wall, time.process_time() - cpu, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, type=Path)
    parser.add_argument("--tokens", type=Path, help="token shards; default: random ids of chat-like lengths")
    parser.add_argument("--total", type=int, default=6000, help="tokens of one pass")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    threads.add_argument(parser)
    args = parser.parse_args()
    threads.set_threads(args.threads)
    receipt = load_receipt(args.target)
    capture = {"engine": "transformers", "aux_layers": None, "store_dtype": "bfloat16",
               "batch_tokens": args.batch_tokens}  # fmt: skip
    slice = {"capture": capture, "target": {"dtype": "float32", "trust_remote_code": False}}
    engine = TransformersEngine.load(Settings.from_slice(slice, receipt.layers), receipt, "cpu")
    rows = make_rows(args, receipt.vocab_size)
    tokens = sum(len(row) for row in rows)
    walls: dict[str, list[float]] = {"bare": [], "capture": []}
    cpus: dict[str, list[float]] = {"bare": [], "capture": []}
    counts = Counts()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        root = Path(folder)
        write_tokens(root / "tokens", rows, receipt)
        bare(engine, rows[:4], args.batch_tokens)  # warm
        for repeat in range(args.repeats):  # taken in turns, so that other work on the machine hits both alike
            stage = Capture(slice, receipt, root / "tokens", root / f"store{repeat}", lambda *_: Kept(engine))
            for name, work in (
                ("bare", lambda: bare(engine, rows, args.batch_tokens)),
                ("capture", lambda stage=stage, at=root / f"hidden{repeat}": stage.run(at, "bench")),
            ):
                wall, cpu, result = timed(work)
                walls[name].append(wall)
                cpus[name].append(cpu)
                counts = result or counts
    print(f"{receipt.name}, {args.threads} threads, {len(rows)} rows of {tokens:,} tokens, median of {args.repeats}")
    for name in walls:
        wall, cpu = statistics.median(walls[name]), statistics.median(cpus[name])
        print(f"  {name:8} {tokens / wall:8,.0f} tokens/s   {wall:7.2f} s   {cpu:7.2f} CPU s")
    for name, seconds in (("wall", walls), ("CPU", cpus)):
        ratios = [a / b for a, b in zip(seconds["capture"], seconds["bare"], strict=True)]
        print(
            f"  capture / bare, {name:4}: {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
        )
    print(f"  stored {counts.bytes:,} bytes, {counts.raw_bytes / counts.bytes:.3f} times smaller than raw")
    print(f"  padded / real tokens, these rows: {counts.padded / counts.tokens:.3f}")
    for mix in MIXES:
        mixed = lengths_of(mix, 1024, 8192)
        padded = sum(batch.padded_tokens for batch in plan(mixed, args.batch_tokens))
        arrival = sum(len(part) * max(part) for part in (mixed[at : at + 8] for at in range(0, len(mixed), 8)))
        peer = f"8 rows in file order: {arrival / sum(mixed):.2f}"
        print(f"  padded / real tokens, {mix:9}: {padded / sum(mixed):.3f} ({peer})")


if __name__ == "__main__":
    main()
