"""Everything the page and the card show, read from the run's files and put into plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from eyrie.errors import InputError
from eyrie.files import read_json, sha256_file
from eyrie.shards.tokens import read_manifest

EVALUATION = "eyrie-evaluation-1"
MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class DatasetFacts:
    """One training dataset: the generate stage's summary, token counts, and the length of each row.

    `row_tokens` int64[R] counts a row's tokens, `answer_tokens` int64[R] those of them that the target generated.
    """

    name: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    row_tokens: np.ndarray
    answer_tokens: np.ndarray
    dropped: dict[str, int]
    hidden: dict[str, int]  # tokens, bytes, raw_bytes

    @property
    def rejected(self) -> int:
        return sum(self.summary["rows"]["rejected"].values())

    def quantile(self, share: float) -> int:
        """Generated tokens of a row at this quantile; 0 when there is no row."""
        return int(np.quantile(self.answer_tokens, share)) if len(self.answer_tokens) else 0


@dataclass(frozen=True)
class Facts:
    """One run. `evaluation`, `corpus`, `providers`, `config` are the files' own content."""

    slice: dict[str, Any]
    target: dict[str, Any]
    providers: dict[str, Any]
    datasets: list[DatasetFacts]
    corpus: dict[str, Any]
    config: dict[str, Any]  # of the drafter
    evaluation: dict[str, Any]
    steps: list[dict[str, Any]]  # training log: one per optimizer step ...
    looks: list[dict[str, Any]]  # ... and per look at the hold-out
    hashes: dict[str, str]

    @property
    def dollars(self) -> Decimal:
        """USD that the answers in use cost."""
        return sum((Decimal(d.summary["dollars"]["answers"]) for d in self.datasets), Decimal(0))

    @property
    def headline(self) -> float | None:
        """Acceptance length of the hold-out by real decode."""
        return decoded(self.evaluation, "holdout").get("acceptance_length")

    @property
    def drafter_sha256(self) -> str:
        return self.evaluation["drafter"]


def decoded(evaluation: dict[str, Any], name: str) -> dict[str, Any]:
    """The real decode of a set at the headline's chain length; empty when there was none."""
    return evaluation["sets"][name]["decode"].get(str(evaluation["chain_length"]), {})


def read_evaluation(path: Path) -> dict[str, Any]:
    """evaluation.json, the hold-out first. Raises InputError when it is missing or of another format."""
    value = read_json(path, hint=f"build it with `snakemake {path}`")
    if not isinstance(value, dict) or value.get("format") != EVALUATION or "holdout" not in value.get("sets", {}):
        raise InputError(f"{path}: not an evaluation of format {EVALUATION}; delete it and run `snakemake {path}`")
    sets = value["sets"]
    value["sets"] = {"holdout": sets["holdout"]} | {name: sets[name] for name in sorted(sets)}
    return value


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The training log as (steps, looks at the hold-out). Raises InputError naming a bad line."""
    import json

    steps, looks = [], []
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run `snakemake train`") from None
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            (looks if "eval" in record else steps).append(record)
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: line {number} is no record of the training log ({error})") from None
    return steps, looks


def dataset_facts(
    manifest: Path, hidden: Path, summaries: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> DatasetFacts:
    """From a dataset's token manifest (its shards lie beside it) and hidden-state manifest.

    Raises InputError when its summary is missing.
    """
    tokens = read_manifest(manifest.parent)
    name = tokens.dataset
    if name not in summaries:
        raise InputError(f"dataset {name}: no file of --generated-summaries is its")
    lengths, answers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for entry in tokens.shards:
        shard = tokens.read(entry)
        lengths.append(np.diff(shard.offsets))
        generated = np.concatenate([[0], np.cumsum(shard.span_end.astype(np.int64) - shard.span_start)])
        answers.append(np.diff(generated[shard.span_offsets]))
    states = read_json(hidden, hint=f"build it with `snakemake {hidden}`")
    sums = {key: sum(int(shard[key]) for shard in states["shards"]) for key in ("tokens", "bytes", "raw_bytes")}
    return DatasetFacts(
        name, settings.get(name, {}), summaries[name], np.concatenate(lengths), np.concatenate(answers),
        dict(tokens.dropped), sums,
    )  # fmt: skip


def gather(
    slice_: dict[str, Any],
    *,
    target: Path,
    providers: Path,
    summaries: Sequence[Path],
    tokens: Sequence[Path],
    hidden: Sequence[Path],
    corpus: Path,
    metrics: Path,
    drafter: Path,
    evaluation: Path,
) -> Facts:
    """Read every input. Raises InputError naming the file that is missing, damaged or does not belong."""
    steps, looks = read_log(metrics)
    by_name = {}
    for path in summaries:
        value = read_json(path, hint=f"build it with `snakemake {path}`")
        by_name[value["dataset"]] = value
    states = {path.parent.name: path for path in hidden}
    found = []
    for path in tokens:
        if path.parent.name not in states:
            raise InputError(f"{path}: no file of --hidden belongs to it")
        found.append(dataset_facts(path, states[path.parent.name], by_name, slice_["datasets"]))
    receipt, measured = read_json(target), read_evaluation(evaluation)
    if measured["target"] != receipt["fingerprint"]:
        raise InputError(f"{evaluation}: was measured with another target; run `snakemake --forcerun evaluate`")
    inputs = {"target": target, "providers": providers, "corpus": corpus, "training log": metrics,
              "evaluation": evaluation, "drafter config": drafter}  # fmt: skip
    hashes = {name: sha256_file(path) for name, path in inputs.items()}
    hashes |= {f"tokens {path.parent.name}": sha256_file(path) for path in tokens}
    return Facts(
        slice=slice_,
        target=receipt,
        providers=read_json(providers),
        datasets=found,
        corpus=read_json(corpus),
        config=read_json(drafter),
        evaluation=measured,
        steps=steps,
        looks=looks,
        hashes=hashes,
    )
