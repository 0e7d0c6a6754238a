"""What the Snakefile and its rules ask the configuration: paths, slices, shards, resources.

Rules stay declarative; every decision that needs code is here and tested without Snakemake.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyrie.config import compose, load_slice, overrides, plan_settings, runtime, shards, stage_slice
from eyrie.errors import InputError
from eyrie.files import canonical_json
from eyrie.plan import making, show


class Workflow:
    """One composed configuration, as the rules see it.

    `settings` is Snakemake's own `config` (`--config` and `--configfile`), the channel for Hydra overrides.
    Raises InputError with the path of a wrong key; the Snakefile turns it into Snakemake's own error.
    """

    def __init__(self, conf_dir: str | Path, settings: Mapping[str, Any]) -> None:
        self.config = compose(conf_dir, overrides(settings))
        self.datasets = list(self.config["datasets"])
        self.benchmarks = list(self.config["evaluate"]["benchmarks"])
        self.run = f"{self.config['results']}/{self.config['run']}"
        self.store = self.config["store"]
        self.vault = self.config["vault"]
        self.runtime = runtime(self.config)
        # The interpreter that runs Snakemake runs the stages, whether or not its environment is activated.
        self.eyrie = f"{sys.executable} -m eyrie"

    @property
    def embedded(self) -> bool:
        """Whether the target answers from this machine's cores."""
        return self.config["gateway"]["kind"] == "embedded"

    @property
    def serves_target(self) -> bool:
        """Whether generate jobs run the target themselves and so need its files: embedded, or a launched server."""
        return self.embedded or self.config["gateway"]["launch"]["engine"] is not None

    @property
    def paid(self) -> bool:
        """Whether answers may cost money."""
        return self.config["gateway"]["kind"] == "openrouter" and self.config["generate"]["budget_usd"] > 0

    @property
    def plan_settings(self) -> str:
        """JSON of what a plan is made from, beside the slice `fit`."""
        return plan_settings(self.config)

    @property
    def plan_files(self) -> making.Files:
        """What a plan looks at, whether or not it is there yet."""
        prompts = zip(self.datasets, self.per_dataset("prompts", ".jsonl.zst"), strict=True)
        return making.Files(
            Path(self.run, "providers.json"), {name: Path(path) for name, path in prompts}, Path(self.vault)
        )

    def plan_lines(self) -> list[str]:
        """The head of a dry run: what a paid run will buy and cost; nothing for a free one. No network, no key."""
        if not self.paid:
            return []
        return list(
            show.lines(making.make(load_slice(self.plan_settings), load_slice(self.slice("fit")), self.plan_files))
        )

    def fit_file(self, dataset: str) -> list[str]:
        """The chosen token budget that a generate job reads; none when the dataset has a number of its own."""
        generate, own = self.config["generate"], self.config["datasets"].get(dataset, {}).get("tokens")
        return [f"{self.run}/fit.json"] if generate["tokens_per_dataset"] == making.FIT and own is None else []

    @property
    def target_argument(self) -> str:
        """`--target FILE` where the gateway runs the target itself; a paid gateway needs no model files."""
        return f"--target {self.run}/target.json" if self.serves_target else ""

    def slice(self, stage: str, dataset: str | None = None) -> str:
        """Canonical JSON of what a job's output depends on (a rule's only tracked parameter)."""
        return stage_slice(self.config, stage, dataset)

    def shards(self, dataset: str, folder: str, suffix: str) -> list[str]:
        """The shard files of one dataset and their manifest, known before anything runs."""
        base = f"{self.run}/{folder}/{dataset}"
        return [f"{base}/{name}{suffix}" for name in shards(self.config, dataset)] + [f"{base}/manifest.json"]

    def manifests(self, folder: str) -> list[str]:
        """The manifest of every dataset's shards in `folder`."""
        return [f"{self.run}/{folder}/{dataset}/manifest.json" for dataset in self.datasets]

    def all_shards(self, folder: str, suffix: str) -> list[str]:
        """Every dataset's shards and manifests."""
        return [path for dataset in self.datasets for path in self.shards(dataset, folder, suffix)]

    def per_dataset(self, folder: str, suffix: str, names: list[str] | None = None) -> list[str]:
        """One file per dataset: `<run>/<folder>/<dataset><suffix>`."""
        return [f"{self.run}/{folder}/{name}{suffix}" for name in (self.datasets if names is None else names)]

    def generate_slice(self, dataset: str) -> str:
        """The generate slice of a dataset, with `continued` where partial data is being, or was, completed.

        A dataset that was built on before it was complete (`generate.on_exhausted=build_partial`) must be pending once
        the default holds again, and no longer be so when it is complete: the job that completes it notes `continued` in
        the summary, so that its slice stays what it was then.
        """
        cut = self.slice("generate", dataset)
        path = Path(f"{self.run}/generated/{dataset}.summary.json")
        try:
            summary = json.loads(path.read_bytes())
            continued = summary["continued"] if summary["complete"] else not self._accepts_partial
        except FileNotFoundError:
            continued = False
        except (OSError, ValueError, LookupError, TypeError):
            continued = True  # nothing that a job has written: making it anew is free
        return canonical_json({**json.loads(cut), "continued": True}) if continued else cut

    @property
    def _accepts_partial(self) -> bool:
        return self.config["generate"]["on_exhausted"] == "build_partial"

    def threads(self, stage: str, cores: int | None) -> int:
        """Threads of one job; 0 in the configuration is every core that Snakemake was given."""
        return self.config["resources"][stage]["threads"] or cores or 1

    def resources(self, stage: str) -> dict[str, int]:
        """`gpu`, `mem_mb` and `runtime` (minutes) of one job, for `resources:`."""
        wanted = self.config["resources"][stage]
        return {name: wanted[name] for name in ("gpu", "mem_mb", "runtime")}

    def benchmark_arguments(self) -> str:
        """`--benchmarks NAME=FILE` for every benchmark."""
        pairs = zip(self.benchmarks, self.per_dataset("prompts", ".jsonl.zst", self.benchmarks), strict=True)
        return " ".join(f"{name}={path}" for name, path in pairs)


def dataset_pattern(names: list[str]) -> str:
    """A wildcard constraint that matches these names and nothing else."""
    if not names:
        raise InputError("configuration: no datasets and no benchmarks")
    return "|".join(names)
