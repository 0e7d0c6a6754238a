"""Rules of the configuration that a type cannot state, since they span keys or bound a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from eyrie.errors import InputError, check_known
from eyrie.schema_gateway import QUANTIZATIONS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
SLOW = 10  # tokens a second that a paid endpoint gives under load: what a time limit must allow for


def check(config: dict[str, Any]) -> None:
    """Raise InputError, naming the key, when the composed configuration breaks a rule that spans keys."""

    def need(truth: bool, message: str) -> None:
        if not truth:
            raise InputError(f"configuration: {message}")

    need(NAME.fullmatch(config["run"]) is not None, f"run={config['run']!r} must be letters, digits, _ and - only")
    need(bool(config["datasets"]), "datasets is empty; choose some with dataset=[NAME,...] (files in conf/dataset/)")
    for name, dataset in {**config["datasets"], **config["evaluate"]["benchmarks"]}.items():
        need(NAME.fullmatch(name) is not None, f"dataset name {name!r} must be letters, digits, _ and - only")
        need(dataset["rows"] > 0, f"datasets.{name}.rows must be positive")
        need(dataset["turns"] > 0, f"datasets.{name}.turns must be positive")
        need((dataset["budget_usd"] or 0) >= 0, f"datasets.{name}.budget_usd must not be negative")
    both = set(config["datasets"]) & set(config["evaluate"]["benchmarks"])
    need(not both, f"{', '.join(sorted(both))}: both a dataset and a benchmark; a benchmark is never trained on")
    need(0 < config["corpus"]["holdout"] < 1, "corpus.holdout must lie between 0 and 1")
    for key in ("generate.max_tokens", "generate.in_flight", "generate.slots_per_client", "generate.repetitions",
                "tokenize.rows_per_shard", "tokenize.max_length", "capture.batch_tokens", "train.steps",
                "train.ttt_steps", "train.batch_tokens", "drafter.draft_vocab_size", "evaluate.rows"):  # fmt: skip
        section, name = key.split(".")
        need(config[section][name] > 0, f"{key}={config[section][name]} must be positive")
    _check_generate(config, need)
    need(config["generate"]["budget_usd"] >= 0, "generate.budget_usd must not be negative")
    need(config["gateway"]["usage_lag_s"] >= 0, "gateway.usage_lag_s must not be negative")
    need(config["evaluate"]["chain_length"] in config["evaluate"]["chain_lengths"],
         "evaluate.chain_length must be one of evaluate.chain_lengths")  # fmt: skip
    layers = config["capture"]["aux_layers"]
    need(
        layers is None or (len(layers) == 3 and len(set(layers)) == 3),
        "capture.aux_layers must be three different indices",
    )
    source = config["target"]["source"]
    need(source.split(":")[0] in ("package", "hub", "folder") and ":" in source,
         f"target.source={source!r} must be package:NAME, hub:ORG/NAME or folder:PATH")  # fmt: skip
    for name in config["gateway"]["policy"]["quantizations"]:
        check_known("configuration: gateway.policy.quantizations", name, QUANTIZATIONS, "is no quantization")
    if config["gateway"]["kind"] == "openrouter":
        need(bool(config["target"]["openrouter_model"]), "gateway=openrouter needs target.openrouter_model")
    tokens = config["generate"]["tokens_per_dataset"]
    need(tokens is None or tokens == "fit" or (isinstance(tokens, int) and tokens > 0),
         f"generate.tokens_per_dataset={tokens!r} must be a positive number, null or fit")  # fmt: skip
    need(tokens != "fit" or (config["gateway"]["kind"] == "openrouter" and config["generate"]["budget_usd"] > 0),
         "generate.tokens_per_dataset=fit needs gateway=openrouter and a generate.budget_usd to fit")  # fmt: skip
    need(config["plan"]["answer_tokens"] > 0, "plan.answer_tokens must be positive")
    need(0 < config["plan"]["fit_share"] <= 1, "plan.fit_share must lie between 0 and 1")
    for name in ("prompt_price", "completion_price"):
        need((config["plan"][name] or 0) >= 0, f"plan.{name} must not be negative")
    gateway, engine = config["gateway"], config["gateway"]["launch"]["engine"]
    if gateway["kind"] == "openai":
        need(bool(gateway["base_url"] or engine),
             "gateway=openai needs the address of a running server, e.g. gateway.base_url=http://127.0.0.1:30000/v1; "
             "or let each job start one: gateway=sglang or gateway=vllm")  # fmt: skip
        need(not (gateway["base_url"] and engine),
             f"gateway.base_url names a running server and gateway.launch.engine={engine} starts one; "
             "set one of them to null")  # fmt: skip
    else:
        need(engine is None, f"gateway.launch.engine={engine} is for gateway=openai, not {gateway['kind']}")


def _check_generate(config: Mapping[str, Any], need: Callable[[bool, str], None]) -> None:
    """How answers are cut, timed and judged."""
    generate, kind, quality = config["generate"], config["gateway"]["kind"], config["generate"]["quality"]
    longest = max((d["max_tokens"] or generate["max_tokens"] for d in config["datasets"].values()), default=0)
    limits = ["deadline_s", *(["timeout_s"] if config["gateway"]["stream"] is False else [])]
    for key in limits if kind == "openrouter" else ():
        instead = ", or stream (gateway.stream=true)" if key == "timeout_s" else ""
        need(
            generate[key] * SLOW >= longest,
            f"generate.{key}={generate[key]:g} cuts answers of {longest} tokens (up to {longest / SLOW:.0f} s each), "
            f"and what is cut is billed; raise it{instead}",
        )
    for key in ("max_pieces", "timeout_s", "deadline_s"):
        need(generate[key] > 0, f"generate.{key}={generate[key]} must be positive")
    need(0 <= quality["loop_share"] < 1, "generate.quality.loop_share must lie between 0 and 1")
    window = quality["loop_window"]
    need(window == 0 or window >= 500, f"generate.quality.loop_window={window} must be 0 (off) or at least 500")
    need(quality["tries"] > 0, "generate.quality.tries must be positive")
    if generate["on_length"] == "continue":
        need(kind != "openrouter", "generate.on_length=continue: no endpoint takes token ids, and text encoded anew is "
             "not what the target generated; raise generate.max_tokens, or keep or drop cut answers")  # fmt: skip
        need(not config["gateway"]["stream"] and config["gateway"]["ask_token_ids"], "generate.on_length=continue "
             "needs token ids: set gateway.ask_token_ids=true and gateway.stream=false")  # fmt: skip
        need(kind != "embedded", "generate.on_length=continue: the embedded gateway says the same again with a larger "
             "generate.max_tokens, and further; raise that instead")  # fmt: skip
