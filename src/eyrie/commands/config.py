"""Print the configuration that a run would use.

    eyrie config                                    the laptop default
    eyrie config experiment=kimi_k2_5               another experiment
    eyrie config train.lr=5e-4 --slice train        what the train stage would see
    eyrie config --names                            the files of conf/ that can be chosen

Any Hydra override works: KEY=VALUE, GROUP=FILE. On the Snakemake command line write the same as
`--config experiment=kimi_k2_5 'set=[train.lr=5e-4]'`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from eyrie.config import GROUPS, SLICES, compose, runtime, stage_slice
from eyrie.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, applied in order")
    parser.add_argument("--conf-dir", default="conf", help="folder with config.yaml (default: %(default)s)")
    stages = ", ".join(SLICES)
    slice_help = f"print only what this stage depends on, as its rule passes it: {stages}"
    parser.add_argument("--slice", choices=sorted(SLICES), metavar="STAGE", help=slice_help)
    parser.add_argument("--dataset", help="with --slice: add this dataset's own settings")
    parser.add_argument(
        "--runtime", action="store_true", help="print what generate needs beside its slice (money, address)"
    )
    parser.add_argument("--names", action="store_true", help="list the groups and their files")


def run(args: argparse.Namespace) -> int:
    if args.names:
        for group in GROUPS:
            files = sorted(path.stem for path in (Path(args.conf_dir) / group).glob("*.yaml"))
            print(f"{group}: {', '.join(files)}")
        return 0
    config = compose(args.conf_dir, args.overrides)
    if args.runtime:
        print(runtime(config))
        return 0
    if args.slice:
        if args.dataset and args.dataset not in {**config["datasets"], **config["evaluate"]["benchmarks"]}:
            raise InputError(
                f"--dataset {args.dataset}: not in this configuration; it has {', '.join(config['datasets'])}"
            )
        print(stage_slice(config, args.slice, args.dataset))
        return 0
    import yaml

    print(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), end="")
    return 0
