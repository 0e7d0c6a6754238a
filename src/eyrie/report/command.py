"""Write the report page and the drafter's card.

The page (report.html) is one file without scripts or addresses: acceptance, training curves, tokens, lengths, money,
providers and the provenance of it all. The card (drafter/README.md) goes with the weights: figures, data, settings,
and the full commands to serve the drafter with SGLang and vLLM. Same inputs, same bytes.

  eyrie report --slice "$(eyrie config --slice report)" --target R/target.json --providers R/providers.json \\
      --generated-summaries R/generated/*.summary.json --tokens R/tokens/*/manifest.json \\
      --hidden R/hidden/*/manifest.json --corpus R/corpus/manifest.json --metrics R/train.jsonl \\
      --drafter R/drafter/config.json --evaluation R/evaluation.json --output R/report.html --card R/drafter/README.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eyrie.config import load_slice
from eyrie.files import atomic_write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def file(name: str, text: str, **more: object) -> None:
        parser.add_argument(name, required=True, type=Path, metavar="FILE", help=text, **more)  # type: ignore[arg-type]

    parser.add_argument("--slice", required=True, metavar="JSON", help="`eyrie config --slice report`")
    file("--target", "target.json")
    file("--providers", "providers.json")
    file("--generated-summaries", "one per dataset", nargs="+")
    file("--tokens", "token manifests, their shards beside them", nargs="+")
    file("--hidden", "hidden-state manifests", nargs="+")
    file("--corpus", "manifest of the corpus")
    file("--metrics", "training log, train.jsonl")
    file("--drafter", "config.json of the drafter")
    file("--evaluation", "evaluation.json")
    file("--output", "report.html")
    file("--card", "drafter/README.md")


def run(args: argparse.Namespace) -> int:
    """Gather the facts, render both, write both."""
    slice_ = load_slice(args.slice)

    from eyrie.report import render
    from eyrie.report.facts import gather

    facts = gather(
        slice_, target=args.target, providers=args.providers, summaries=args.generated_summaries, tokens=args.tokens,
        hidden=args.hidden, corpus=args.corpus, metrics=args.metrics, drafter=args.drafter, evaluation=args.evaluation,
    )  # fmt: skip
    for path, text in ((args.card, render.card(facts)), (args.output, render.page(facts))):
        with atomic_write(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    print(f"report: {args.output} and {args.card}", file=sys.stderr)
    return 0
