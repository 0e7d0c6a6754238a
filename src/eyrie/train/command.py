"""Train the EAGLE-3 drafter on captured hidden states and export it for SGLang and vLLM.

Reads the corpus (which rows train, the draft vocabulary), the token shards and the hidden states of every dataset, and
nothing of the target but its embedding and head. Rows are packed without padding; `ttt_steps` draft steps
are unrolled at exactly the slots that serving uses; the loss is the KL divergence to the target over the draft
vocabulary.

  eyrie train --slice "$(eyrie config --slice train)" --target results/laptop/target.json \\
    --corpus results/laptop/corpus --tokens results/laptop/tokens/demo_code --hidden results/laptop/hidden/demo_code \\
    --store store/train --output results/laptop/drafter --metrics results/laptop/train.jsonl

Checkpoints, the TensorBoard log (`tensorboard --logdir store/train`) and the finished drafter live in the store under a
hash of all inputs: killed at any moment, a rerun goes on and ends with the same bytes; a finished run is only copied.
SIGINT and SIGTERM finish the step under way and save it.

Writes OUTPUT/config.json, OUTPUT/model.safetensors (loaded and compared before they count; see `eyrie check`) and
METRICS, one JSON line per step and per look at the hold-out, without times.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eyrie import threads
from eyrie.config import load_slice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `eyrie train`."""
    parser.add_argument("--slice", required=True, metavar="JSON", help="from `eyrie config --slice train`")
    parser.add_argument("--target", required=True, metavar="FILE", help="target.json")
    parser.add_argument("--corpus", required=True, type=Path, metavar="DIR", help="folder of `eyrie corpus`")
    parser.add_argument("--tokens", required=True, nargs="+", type=Path, metavar="DIR", help="one folder per dataset")
    parser.add_argument("--hidden", required=True, nargs="+", type=Path, metavar="DIR", help="one folder per dataset")
    parser.add_argument("--store", required=True, type=Path, metavar="DIR", help="where runs are kept, by content")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder for the drafter")
    parser.add_argument("--metrics", required=True, type=Path, metavar="FILE", help="JSON Lines log to write")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs given to this job (default: 0, the CPU)")
    threads.add_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train or find the run, then deliver it."""
    slice_ = load_slice(args.slice)
    threads.set_threads(args.threads)
    from eyrie.shards.corpus import read_corpus
    from eyrie.target import load_receipt
    from eyrie.train.data import Data
    from eyrie.train.stage import Inputs, deliver, train

    target = load_receipt(args.target)
    inputs = Inputs(target, args.corpus, args.tokens, args.hidden)
    data = Data(read_corpus(args.corpus), args.tokens, args.hidden, target.fingerprint)
    entry = train(slice_, inputs, data, store=args.store, gpus=args.gpus)
    deliver(entry, args.output, args.metrics)
    print(f"train: wrote {args.output} and {args.metrics}", file=sys.stderr)
    return 0
