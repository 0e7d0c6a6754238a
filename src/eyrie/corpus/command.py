"""Merge token shards: what trains, what is held out, and the draft vocabulary.

Reads  tokens/DATASET/ of every dataset and target.json.
Writes corpus/rows.parquet (every kept row with its split), corpus/vocab.safetensors (t2d, d2t as offsets, counts) and
       corpus/manifest.json (counts per dataset, coverage, hashes).

Rows with equal ids and spans are kept once, in the first dataset that has them. A prompt is held out when the hash of
its token ids (with corpus.seed) lies in the lowest corpus.holdout of all hashes, so growing a dataset never moves a
prompt between the sides, and all answers and turns of one prompt lie on the same side. Neither side is ever empty.

The draft vocabulary holds every special token and the tokens that are trained most often in the train split. Changing
drafter.draft_vocab_size reruns this and training, not the capture.

example: eyrie corpus --slice "$(eyrie config --slice corpus)" --target results/laptop/target.json \\
           --tokens results/laptop/tokens/demo_tools results/laptop/tokens/demo_code --output results/laptop/corpus
"""

from __future__ import annotations

import argparse

from eyrie.config import load_slice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice corpus`")
    parser.add_argument("--target", required=True, metavar="FILE", help="target.json of `eyrie target`")
    parser.add_argument("--tokens", required=True, nargs="+", metavar="DIR", help="token folders; earlier ones win")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the corpus")


def run(args: argparse.Namespace) -> int:
    """See `eyrie.corpus.merge.merge` for what is refused."""
    from eyrie.corpus.merge import merge, report
    from eyrie.target import load_receipt

    receipt = load_receipt(args.target)
    manifest = merge(load_slice(args.slice), args.tokens, target=receipt.fingerprint, vocab_size=receipt.vocab_size,
                     output=args.output)  # fmt: skip
    report(manifest)
    return 0
