"""What heads that copy from the start are worth: two short runs on one corpus, equal but for that.

  python benchmarks/copying.py --run results/laptop [--steps 250] [--threads 2]

Prints the slot mean and the accuracy per draft position on the hold-out of both runs, and the seconds each took. Needs
a run whose hidden states are captured (`snakemake capture corpus`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("results/laptop"), metavar="DIR")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    eyrie = [sys.executable, "-m", "eyrie"]
    found = subprocess.run([*eyrie, "config", "--slice", "train"], check=True, capture_output=True, text=True)
    corpus = json.loads((args.run / "corpus" / "manifest.json").read_text())
    for copying in (False, True):
        cfg = json.loads(found.stdout)
        cfg["train"].update(steps=args.steps, evaluate_every=args.steps)
        cfg["drafter"]["copying_heads"] = copying
        folders = {kind: [str(args.run / kind / name) for name in corpus["datasets"]] for kind in ("tokens", "hidden")}
        with tempfile.TemporaryDirectory() as place:
            began = time.monotonic()
            subprocess.run(
                [*eyrie, "train", "--slice", json.dumps(cfg), "--target", args.run / "target.json",
                 "--corpus", args.run / "corpus", "--tokens", *folders["tokens"], "--hidden", *folders["hidden"],
                 "--store", f"{place}/store", "--output", f"{place}/drafter", "--metrics", f"{place}/metrics.jsonl",
                 "--threads", str(args.threads)],
                check=True, capture_output=True,
            )  # fmt: skip
            seconds = time.monotonic() - began
            last = json.loads(Path(place, "metrics.jsonl").read_text().rstrip("\n").split("\n")[-1])["eval"]
        accuracy = " ".join(f"{value:.3f}" for value in last["accuracy"])
        print(
            f"copying heads {'on ' if copying else 'off'}: slot mean {last['slot_mean']:.3f} over {last['slots']} "
            f"slots, accuracy {accuracy}, {args.steps} steps in {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
