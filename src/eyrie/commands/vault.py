"""What is in the vault: answers, dollars, what is held, per dataset and per provider. It only reads.

It works while jobs run and on a read-only disk, changes nothing, and has no way to delete anything.

    eyrie vault                                       the figures, as tables
    eyrie vault --json                                the same for a program (money in micro-dollars)
    eyrie vault --verify                              read every answer and prove the books; exit code 2 if any fails
    eyrie vault --export answers.jsonl.zst            every answer with its reply and provenance, as JSON Lines
    eyrie vault --export - --dataset B1_glaive        one dataset's, uncompressed, to stdout

settled   billed by the gateway, known for each request
reserved  held for requests under way
unknown   held for requests whose reply was lost: asked after by id when a job starts, else settled by the key's usage
exposure  what requests under way or unknown may cost beyond what is held, if all ran to their limits (0 with
          generate.reserve=worst)
wasted    billed for attempts that gave no usable answer
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import atomic_write, canonical_json, write_jsonl_zst
from eyrie.vault import Reader, contents, verify
from eyrie.vault.money import dollars


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vault", type=Path, default=Path("vault"), help="folder of the vault (default: %(default)s)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--json", action="store_true", help="print the figures as JSON")
    action.add_argument("--verify", action="store_true", help="read every answer and prove file and books")
    action.add_argument(
        "--export", metavar="FILE", help="write the answers to FILE (.jsonl.zst or .jsonl), or to stdout for -"
    )
    parser.add_argument("--dataset", help="with --export: only this dataset")
    parser.add_argument("--model", help="with --export: only this model")


def run(args: argparse.Namespace) -> int:
    if (args.dataset or args.model) and not args.export:
        raise InputError("--dataset and --model choose what --export writes; add --export FILE")
    with Reader(args.vault) as reader:
        if args.verify:
            return _verify(reader)
        if args.export:
            return _export(reader, args.export, args.model, args.dataset)
        figures = contents.everything(reader)
    print(json.dumps(figures, indent=2, sort_keys=True) if args.json else "\n".join(describe(figures)))
    return 0


def _verify(reader: Reader) -> int:
    found = 0
    for problem in verify.thorough(reader):
        print(f"{reader.path}: {problem}")
        found += 1
    if found:
        raise InputError(
            f"{reader.path}: {found} problem{'s' * (found > 1)}; keep the file, and restore a backup of the vault"
        )
    answers = reader.query("SELECT count(*) FROM answers")[0][0]
    attempts = reader.query("SELECT count(*) FROM journal")[0][0]
    print(f"{reader.path}: all is well ({answers:,} answers read, {attempts:,} attempts balanced)")
    return 0


def _export(reader: Reader, where: str, model: str | None, dataset: str | None) -> int:
    rows = contents.export(reader, model=model, dataset=dataset)
    if where == "-":
        for row in rows:
            sys.stdout.write(canonical_json(row) + "\n")
        return 0
    if where.endswith(".jsonl.zst"):
        count = write_jsonl_zst(where, rows)
    elif where.endswith(".jsonl"):
        count = 0
        with atomic_write(where) as file:
            for row in rows:
                file.write(canonical_json(row).encode() + b"\n")
                count += 1
    else:
        raise InputError(f"--export {where}: must end in .jsonl.zst or .jsonl, or be - for stdout")
    print(f"{where}: {count:,} answers", file=sys.stderr)
    return 0


def describe(figures: dict[str, Any]) -> Iterable[str]:
    """The figures as lines of text."""
    yield f"{figures['path']}: {figures['bytes'] / 1e6:,.1f} MB"
    yield ""
    yield from _table(
        ("account", "run", "settled", "reserved", "under way", "unknown", "lost", "exposure"),
        [
            (a["account"], a["run"], dollars(a["settled"]), dollars(a["reserved"]), f"{a['under_way']:,}",
             dollars(a["unknown"]), f"{a['lost']:,}", dollars(a["exposure"]))
            for a in figures["accounts"]
        ],
        left=2,
    )  # fmt: skip
    yield ""
    yield from _table(
        ("dataset", "model", "answers", "shared", "rejected", "prompt tok", "output tok", "thought", "billed", "wasted",
         "attempts", "lost"),
        [
            (d["dataset"], d["model"], *(f"{d[n]:,}" for n in ("answers", "shared", "rejected", "prompt_tokens",
             "completion_tokens", "reasoning_tokens")), dollars(d["billed"]), dollars(d["wasted"]),
             f"{d['attempts']:,}", f"{d['lost']:,}")
            for d in figures["datasets"]
        ],
        left=2,
    )  # fmt: skip
    yield ""
    yield from _table(
        ("provider", "model", "answers", "output tok", "billed", "$/M output", "failed"),
        [
            (p["provider"], p["model"], f"{p['answers']:,}", f"{p['completion_tokens']:,}", dollars(p["cost"]),
             _per_million(p["cost"], p["completion_tokens"]), f"{p['failed']:,}")
            for p in figures["providers"]
        ],
        left=2,
    )  # fmt: skip


def _per_million(micro: int, tokens: int) -> str:
    return dollars(micro * 1_000_000 // tokens) if tokens else "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterable[str]:
    """Columns as wide as their widest cell; the first `left` of them flush left, figures flush right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()
