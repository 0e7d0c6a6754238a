"""The token budget that `generate.tokens_per_dataset=fit` chose: decided once, kept beside the paid answers.

A price that moves by a cent, a deleted results folder or a raised budget must not change which rows a dataset has, so
the number is looked up, not worked out again: one small file per run, model and set of datasets. `eyrie plan --refit`
is what chooses anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import fingerprint, read_json, write_json

FORMAT = "eyrie-fit-1"


def record_path(vault: str | Path, cut: Mapping[str, Any]) -> Path:
    """Where the choice for the slice `fit` (its run, model and datasets) is kept."""
    return Path(vault) / "fit" / f"{cut['run']}-{fingerprint(cut)}.json"


def write_fit(path: Path, tokens: int, cut: Mapping[str, Any], why: Mapping[str, Any]) -> None:
    """Record a choice; `why`: what it was made from, for people."""
    write_json(path, {"format": FORMAT, "tokens_per_dataset": tokens, "asked": cut, "chosen_from": why})


def read_fit(path: str | Path) -> dict[str, Any]:
    """The record in `path`. Raises InputError when it is missing or none."""
    value = read_json(path, hint="run `snakemake generate`, which chooses one")
    tokens = value.get("tokens_per_dataset") if isinstance(value, dict) else None
    if not isinstance(tokens, int) or tokens < 1 or value.get("format") != FORMAT:
        raise InputError(f"{path}: not a chosen token budget ({FORMAT}); run `eyrie plan --refit` to choose anew")
    return value
