"""Compose the configuration once, check it, and cut from it the slice that each stage sees.

A slice is the JSON of what a stage's output depends on; a rule's `params` hold it, so Snakemake reruns the stage
when it changes and only then. `runtime()` is the other half: money, concurrency, key file, addresses.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from eyrie.checks import check
from eyrie.errors import InputError
from eyrie.files import canonical_json
from eyrie.schema import MONEY_AND_CONCURRENCY, Config, Slice

GROUPS = ("target", "gateway", "dataset", "generate", "tokenize", "corpus", "capture", "drafter", "train",
          "evaluate", "experiment")  # fmt: skip
# Mappings whose names the user chooses.
OPEN = ("gateway.launch.args", "gateway.policy.evidence", "gateway.policy.fixed_sampling")


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Snakemake's `config` as Hydra overrides: `{key: value}` becomes `key=value`, the list `set` is taken as is."""
    found = []
    for key, value in settings.items():
        if key == "set":
            found += split_list(value) if isinstance(value, str) else [str(item) for item in value]
        else:
            found.append(f"{key}={_hydra_value(value)}")
    # A changed default (experiment) must come before what is set on top of it.
    return sorted(found, key=lambda text: not text.startswith("experiment="))


def split_list(text: str) -> list[str]:
    """`[a=1,b=[2,3]]` as `["a=1", "b=[2,3]"]`: Snakemake hands a list that holds lists on as text."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    items, depth, quote = [""], 0, ""
    for character in inner:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += 0 if quote else (character in "[{(") - (character in "]})")
        if character == "," and depth == 0 and not quote:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items if item.strip()]


def _hydra_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_hydra_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(_hydra_value(item) for item in value) + "]"
    return str(value)


def compose(conf_dir: str | Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The whole configuration as plain JSON values.

    `changes` are Hydra overrides (`experiment=kimi_k2_5`, `train.lr=5e-5`). Raises InputError with the path of a
    wrong key and the valid names.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name="base_schema", node=Config)
    folder = Path(conf_dir).resolve()
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}: no config.yaml here; run from the checkout or pass --conf-dir")
    asked = _group_prefixes(changes)
    try:
        with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
            config = hydra_compose("config", overrides=asked)
        whole = OmegaConf.to_container(config, resolve=True, throw_on_missing=True, enum_to_str=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explain(error, folder, asked)) from None
    check(whole)
    return whole


def _group_prefixes(changes: Sequence[str]) -> list[str]:
    """`experiment` is no part of the default list, so Hydra wants it appended; names in an open mapping are new."""

    def prefix(change: str) -> str:
        return "+" if change.startswith("experiment=") else "++" if change.startswith(OPEN) else ""

    return [prefix(change) + change for change in changes]


def explain(error: BaseException, folder: Path, changes: Sequence[str]) -> str:
    """Hydra's and OmegaConf's error as one message: what was given, the key's path, the names that exist."""
    from omegaconf.errors import OmegaConfBaseException

    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    message = f"configuration: {text}"
    if text.startswith("Error parsing override"):
        return message + "; write overrides as KEY=VALUE, lists as KEY=[A,B], and quote them for the shell"
    key = getattr(cause, "full_key", None) if isinstance(cause, OmegaConfBaseException) else None
    if key:
        message += f" (key {key})"
        names = _valid_names(key)
        if names:
            close = get_close_matches(key.rsplit(".", 1)[-1], names, n=1)
            message += f"; did you mean {close[0]}?" if close else ""
            message += f"; valid names there: {', '.join(names)}"
    given = [
        change
        for change in changes
        if key and change.lstrip("+~").split("=")[0].split("@")[0] in (key, key.split(".")[0])
    ]
    if given:
        message += f"; given: {given[0].lstrip('+')}"
    for group in GROUPS:  # a group option that does not exist
        if re.search(rf"['\"]?\+?{group}[/=@]", str(error)) and (folder / group).is_dir():
            options = sorted(path.stem for path in (folder / group).glob("*.yaml"))
            message += f"; conf/{group}/ has: {', '.join(options)}"
            break
    return message


def _valid_names(key: str) -> list[str]:
    """The names that the schema knows beside the last part of `key`."""
    node: Any = Config
    for part in key.split(".")[:-1]:
        if dataclasses.is_dataclass(node):
            node = typing.get_type_hints(node).get(part)
        elif typing.get_origin(node) is dict:
            node = typing.get_args(node)[1]
        else:
            return []
    return sorted(f.name for f in dataclasses.fields(node)) if dataclasses.is_dataclass(node) else []


# What each stage's output depends on. A name with a dot takes that key alone.
SLICES: dict[str, tuple[str, ...]] = {
    "target": ("target.name", "target.source", "target.revision", "target.trust_remote_code"),
    "providers": ("gateway.kind", "gateway.policy", "target.openrouter_model", "target.name", "target.thinking"),
    "fit": ("run", "target.openrouter_model"),
    "prompts": ("prompts",),
    "generate": ("generate", "gateway.kind", "target.name", "target.openrouter_model", "target.thinking"),
    "tokenize": ("tokenize", "target.thinking", "target.trust_remote_code"),
    "corpus": ("corpus", "drafter.draft_vocab_size"),
    "capture": ("capture", "target.dtype", "target.trust_remote_code"),
    "train": ("train", "drafter", "target.context_length", "target.trust_remote_code"),
    "evaluate": ("evaluate", "target.dtype", "target.trust_remote_code", "target.thinking"),
    # The page and the card show these; what they are built from follows the same keys.
    "report": ("run", "target", "datasets", "drafter", "train", "generate.temperature", "generate.max_tokens"),
}


def stage_slice(config: Mapping[str, Any], stage: str, dataset: str | None = None) -> str:
    """Canonical JSON of what `stage` depends on; with `dataset`, that dataset's own settings under `dataset`."""
    cut: Slice = {}
    for path in SLICES[stage]:
        node: Any = config
        for part in path.split("."):
            node = node[part]
        *parents, last = path.split(".")
        place = cut
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = node
    if stage == "generate":
        cut["generate"] = {k: v for k, v in cut["generate"].items() if k not in MONEY_AND_CONCURRENCY}
    if stage == "providers":  # an endpoint must give the shortest answers that are asked for; each job checks its own
        asked = config["generate"]["max_tokens"]
        cut["max_tokens"] = min(d["max_tokens"] or asked for d in config["datasets"].values())
    if stage == "fit":  # a share is chosen for these; neither prices nor budget, which must not choose anew
        cut["datasets"] = {name: d["tokens"] for name, d in config["datasets"].items()}
    if dataset is not None:
        known = {**config["datasets"], **config["evaluate"]["benchmarks"]}
        cut["dataset"] = {"name": dataset, **known[dataset]}
    return canonical_json(_without_money(cut))


def _without_money(value: Any) -> Any:
    """`value` without a dataset's budget, wherever datasets stand in it."""
    if not isinstance(value, dict):
        return value
    return {key: _without_money(item) for key, item in value.items() if key != "budget_usd"}


def runtime(config: Mapping[str, Any]) -> str:
    """Canonical JSON of what a generate job needs besides its slice; a change of it reruns nothing."""
    generate = {key: config["generate"][key] for key in MONEY_AND_CONCURRENCY}
    gateway = config["gateway"]
    budgets = {name: d["budget_usd"] for name, d in config["datasets"].items() if d["budget_usd"] is not None}
    return canonical_json({"run": config["run"], **generate, "dataset_budgets_usd": budgets, "gateway": gateway})


def plan_settings(config: Mapping[str, Any]) -> str:
    """Canonical JSON of what a plan is made from; in no slice, since it is mostly money."""
    gateway, target = config["gateway"], config["target"]
    return canonical_json(
        {
            "run": config["run"],
            "target": {name: target[name] for name in ("openrouter_model", "thinking")},
            "gateway": {name: gateway[name] for name in ("account", "account_budget_usd", "sort")},
            **{name: config[name] for name in ("generate", "datasets", "plan")},
        }
    )


def shards(config: Mapping[str, Any], dataset: str) -> list[str]:
    """Zero-padded shard names of a dataset: known before anything runs, one per `rows_per_shard` prompt indices."""
    rows, size = config["datasets"][dataset]["rows"], config["tokenize"]["rows_per_shard"]
    return [f"{number:05d}" for number in range(-(-rows // size))]


def load_slice(text: str) -> Slice:
    """The slice a rule passed on the command line. Raises InputError when it is not a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"--slice: not JSON ({error}); print one with `eyrie config --slice STAGE`") from None
    if not isinstance(value, dict):
        raise InputError("--slice: must be a JSON object; print one with `eyrie config --slice STAGE`")
    return value
