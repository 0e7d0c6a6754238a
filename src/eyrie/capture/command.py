"""Run the target over a dataset's token shards and store the hidden states that the drafter learns from.

For every token: three intermediate states (aux), the final state after the target's last norm, and argmax and
logsumexp of its head. One shard per token shard, in a lossless compressed format, plus a manifest.

Shards live in the store under the hash of what they were made from, and the output folder holds hard links to them:
running this again captures only what is missing or damaged, and a killed job goes on where it was. When nothing is
missing, the target is not even loaded. Free disk is checked before the first token.

  eyrie capture --slice "$(eyrie config --slice capture)" --target results/laptop/target.json \\
      --tokens results/laptop/tokens/demo_code --store store/hidden --output results/laptop/hidden/demo_code
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eyrie import threads
from eyrie.config import load_slice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="settings; see `eyrie config --slice capture`")
    parser.add_argument("--target", required=True, type=Path, metavar="FILE", help="target.json of `eyrie target`")
    parser.add_argument("--tokens", required=True, type=Path, metavar="DIR", help="token shards of `eyrie tokenize`")
    parser.add_argument("--store", required=True, type=Path, metavar="DIR", help="where shards are kept by content")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of links and manifest.json")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs this job was given; 0: run on the CPU")
    threads.add_argument(parser)


def run(args: argparse.Namespace) -> int:
    settings = load_slice(args.slice)
    threads.set_threads(args.threads)
    from eyrie.capture.engine import choose_device, open_engine
    from eyrie.capture.stage import Capture, describe, log
    from eyrie.target import load_receipt

    receipt = load_receipt(args.target)

    def opened(settings, receipt):  # the device is asked for when the target is needed, not when all is stored
        device = choose_device(args.gpus)
        where = f"CPU, {args.threads} threads" if device == "cpu" else f"one GPU of {args.gpus}"
        log(f"loading {receipt.name} ({where})")
        return open_engine(settings, receipt, device)

    capture = Capture(settings, receipt, args.tokens, args.store, opened)
    dataset = args.output.resolve().name
    log(describe(dataset, capture.run(args.output, dataset)))
    return 0
