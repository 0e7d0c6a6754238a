"""Print a run's acceptance table.

eyrie summary results/laptop
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eyrie.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="results/RUN", help="the folder of a finished run")


def run(args: argparse.Namespace) -> int:
    """Print the table; reads evaluation.json only. Raises InputError when it is not there."""
    from eyrie.report.facts import read_evaluation

    if not args.run_folder.is_dir():
        raise InputError(f"{args.run_folder}: no such run; build one with `snakemake`")
    show(read_evaluation(args.run_folder / "evaluation.json"), args.run_folder, Console(file=sys.stdout))
    return 0


def show(evaluation: dict[str, Any], folder: Path, console: Console) -> None:
    """One row per set, at the headline's chain length; plain text where the console is no terminal."""
    chain = str(evaluation["chain_length"])
    table = Table(
        title=f"Acceptance length: tokens per pass of the target, {chain} drafts a pass", title_justify="left"
    )
    table.add_column("set")
    for name in ("slot mean", "chain replay", "real decode", "prompts", "tokens"):
        table.add_column(name, justify="right", style="bold" if name == "real decode" else None)
    for name, entry in evaluation["sets"].items():
        values = (
            entry["slot_mean"].get(chain),
            entry["chain_replay"].get(chain),
            entry["decode"].get(chain, {}).get("acceptance_length"),
        )
        figures = ["-" if value is None else f"{value:.3f}" for value in values]
        table.add_row(Text(name), *figures, str(entry["prompts"]), str(entry["tokens"]))
    console.print(table)
    verdict = "yes" if evaluation["lossless"] else "no"
    # Text, not markup: a folder's name may hold brackets. Long paths are not broken, so that they can be copied.
    for line in (
        f"lossless: {verdict} ({evaluation['compared_tokens']} tokens compared)",
        f"drafter:  {folder / 'drafter'}",
        f"report:   {folder / 'report.html'}",
    ):
        console.print(Text(line), soft_wrap=True)
