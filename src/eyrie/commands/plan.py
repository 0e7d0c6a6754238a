"""Say what a paid run will buy and cost before it buys anything.

Per dataset the output tokens wanted, in hand (in the vault) and missing, and the dollars that the missing ones and
their prompts cost at the accepted endpoints' prices: from the cheapest, as OpenRouter balances load, from the dearest.
Then whether the budget holds it, and the largest equal token budget that it would hold. Every dry run of a paid run
begins with it. Needs no key and no network; what is not there yet (provider list, prompts) is assumed, and said.

    eyrie plan experiment=kimi_k2_5
    eyrie plan experiment=kimi_k2_5 generate.tokens_per_dataset=10_000_000 generate.budget_usd=50

With generate.tokens_per_dataset=fit the run chooses the largest equal number itself (at plan.fit_price), once: the
choice is kept beside the vault, so that a price that moves changes no dataset. To choose anew, for what the budget,
the prices and the vault say now:

    eyrie plan experiment=kimi_k2_5 generate.tokens_per_dataset=fit --refit

Its rule calls it with what it tracks: --slice, --settings, --providers, --prompts, --vault and --output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from eyrie.config import load_slice
from eyrie.errors import InputError
from eyrie.files import atomic_write
from eyrie.gateway.request import MILLION, plain
from eyrie.plan.making import FIT, Files, Plan, choose, make
from eyrie.plan.rates import Case
from eyrie.plan.show import lines
from eyrie.vault.fitted import read_fit, record_path, write_fit
from eyrie.workflow import Workflow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, applied in order")
    parser.add_argument("--conf-dir", default="conf", help="folder with config.yaml (default: %(default)s)")
    parser.add_argument("--refit", action="store_true", help="choose the number of tokens_per_dataset=fit anew")
    parser.add_argument("--slice", metavar="JSON", help="`eyrie config --slice fit`")
    parser.add_argument("--settings", metavar="JSON", help="what the plan needs beside the slice")
    parser.add_argument("--providers", type=Path, help="providers.json")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="the datasets' prompts files")
    parser.add_argument("--vault", type=Path, help="folder of the vault")
    parser.add_argument("--output", type=Path, help="fit.json: the number that tokens_per_dataset=fit stands for")


def run(args: argparse.Namespace) -> int:
    if args.output:
        if not (args.slice and args.settings and args.providers and args.vault):
            raise InputError("--slice, --settings, --providers, --prompts, --vault and --output go together")
        prompts = {path.name.removesuffix(".jsonl.zst"): path for path in args.prompts}
        files = Files(args.providers, prompts, args.vault)
        return _choose(load_slice(args.slice), load_slice(args.settings), files, args.output, anew=False)
    work = Workflow(args.conf_dir, {"set": args.overrides})
    if work.config["gateway"]["kind"] != "openrouter":
        kind = work.config["gateway"]["kind"]
        raise InputError(f"gateway={kind} costs nothing, so there is no plan; try `eyrie plan experiment=kimi_k2_5`")
    settings, cut, files = load_slice(work.plan_settings), load_slice(work.slice("fit")), work.plan_files
    if args.refit:
        if work.config["generate"]["tokens_per_dataset"] != FIT:
            raise InputError("--refit: only generate.tokens_per_dataset=fit has a choice to make anew")
        if not files.providers.exists():
            raise InputError(f"--refit: prices are unknown without {files.providers}; run `snakemake providers`")
        return _choose(cut, settings, files, Path(work.run) / "fit.json", anew=True)
    for line in lines(make(settings, cut, files)):
        print(line)
    return 0


def _choose(cut: Mapping[str, Any], settings: Mapping[str, Any], files: Files, output: Path, *, anew: bool) -> int:
    """Write the recorded choice to `output`; make and record one first where there is none (or `anew`).

    `output` is the record byte for byte, so a run that is built again finds the file that it had.
    """
    record = record_path(files.vault, cut)
    if anew or not record.exists():
        plan = make(settings, cut, files, anew=True)
        write_fit(record, choose(plan), cut, _why(plan, settings))
        for line in lines(make(settings, cut, files)):
            print(line, file=sys.stderr)
    tokens = read_fit(record)["tokens_per_dataset"]
    with atomic_write(output) as file:
        file.write(record.read_bytes())
    print(f"tokens_per_dataset=fit: {tokens:,} output tokens for each dataset ({record})", file=sys.stderr)
    return 0


def _why(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a choice was made from. Nothing reads it but people, and `time` for the plan's own line."""
    case = Case(settings["plan"]["fit_price"])
    per_token = {
        demand.name: plain((demand.rates[case].total * MILLION).quantize(Decimal("0.0001")))
        for demand in plan.demands
        if demand.rates is not None
    }
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"), "price": case.value,
        "budget_usd": plain(plan.budget), "left_usd": plain(plan.left), "usd_per_million_output_tokens": per_token,
        "tokens_in_hand": {demand.name: demand.held for demand in plan.demands},
    }  # fmt: skip
