"""Find out which endpoints serve the target, and which of them may answer.

Reads the gateway's catalogue (free, no key needed) and judges each endpoint by gateway.policy: precision, status,
uptime, price, context, parameters. providers.json lists the accepted and the rejected ones, each with every reason.
An empty list is an error that says which smallest change of the policy would let an endpoint in; it is never
loosened.

    eyrie providers experiment=kimi_k2_5                          look now, write nothing
    eyrie providers experiment=kimi_k2_5 gateway.policy.min_uptime=95
    eyrie providers --show results/kimi_k2_5/providers.json       what a run uses

Its rule calls it with what it tracks:

    eyrie providers --slice "$(eyrie config --slice providers)" --runtime "$(eyrie config --runtime)" \\
        --target results/laptop/target.json --output results/laptop/providers.json
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eyrie.catalogue import listing
from eyrie.catalogue.policy import Policy, judge
from eyrie.catalogue.reasons import demand_some
from eyrie.catalogue.table import show, summary
from eyrie.config import compose, load_slice, runtime, stage_slice
from eyrie.errors import ExitCode, EyrieError, InputError, MissingError
from eyrie.files import read_json, write_json
from eyrie.gateway import served
from eyrie.gateway.key import NO_KEY, ApiKey, read_key
from eyrie.gateway.launch import Launch
from eyrie.gateway.local import open_gateway
from eyrie.gateway.providers import FORMAT, Endpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides; look only, write nothing")
    parser.add_argument("--conf-dir", default="conf", help="folder with config.yaml (default: %(default)s)")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print this providers.json as a table, do nothing else"
    )
    parser.add_argument("--slice", metavar="JSON", help="`eyrie config --slice providers`")
    parser.add_argument("--runtime", metavar="JSON", help="`eyrie config --runtime`: the gateway's address")
    parser.add_argument("--target", type=Path, help="target.json; needed by the embedded gateway only")
    parser.add_argument("--output", type=Path, help="providers.json")


def run(args: argparse.Namespace) -> int:
    if args.show:
        value = read_json(args.show, hint="run `snakemake providers`")
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise InputError(f"{args.show}: not a provider list ({FORMAT})")
        show(value, sys.stdout)
        return 0
    if args.slice or args.runtime or args.output:
        if not (args.slice and args.runtime and args.output) or args.overrides:
            raise InputError("--slice, --runtime and --output go together, and without KEY=VALUE")
        value = make(load_slice(args.slice), load_slice(args.runtime)["gateway"], args.target)
        write_json(args.output, value)
        if value["gateway"] == "openrouter":
            show(value, sys.stderr)
        else:
            print(summary(value), file=sys.stderr)
        return 0
    config = compose(args.conf_dir, args.overrides)
    cut, gateway = load_slice(stage_slice(config, "providers")), load_slice(runtime(config))["gateway"]
    show(make(cut, gateway, args.target), sys.stdout)
    return 0


def make(cut: dict[str, Any], gateway: dict[str, Any], target: Path | None) -> dict[str, Any]:
    """The content of providers.json for the slice `cut`, read from the catalogue now.

    Raises EyrieError(POLICY_EMPTY) when no endpoint may answer or the model is retired, InputError for a policy that
    names what does not exist.
    """
    kind = cut["gateway"]["kind"]
    policy = Policy.read(cut["gateway"]["policy"])
    key = _optional_key(kind, gateway["api_key_file"])
    if Launch.read(gateway.get("launch")) is not None:  # each generate job starts it; loading it to list it is dear
        model, facts, endpoints = cut["target"]["name"], listing.model_facts({}), [served.endpoint(None)]
    else:
        with open_gateway(kind, gateway["base_url"], target=target, catalogue_only=True) as opened:
            model, facts, endpoints = _read(kind, opened.url, cut["target"], key)
    _check_facts(model, facts, policy, cut["target"])
    # One server that the user chose himself is not judged: there is nothing to choose from.
    accepted, rejected = (endpoints, []) if kind == "openai" else judge(policy, endpoints, cut.get("max_tokens", 0))
    demand_some(model, accepted, rejected)
    return {
        "format": FORMAT,
        "gateway": kind,
        "model": model,
        "model_facts": facts,
        "accepted": [e.to_json() for e in accepted],
        "rejected": [{**e.to_json(), "reasons": [finding.text for finding in why]} for e, why in rejected],
        "policy": cut["gateway"]["policy"],
        # The embedded gateway's offer never changes, so its list is the same bytes on every day.
        "time": None if kind == "embedded" else datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _optional_key(kind: str, api_key_file: str | None) -> ApiKey:
    """The catalogue is public: a machine without a key may read it."""
    try:
        return read_key(kind, api_key_file)
    except MissingError:
        return NO_KEY


def _read(kind: str, base: str, target: dict[str, Any], key: ApiKey) -> tuple[str, dict[str, Any], list[Endpoint]]:
    if kind == "openai":
        return listing.openai_server(base, target["name"], key)
    entry = (
        listing.only_model(base) if kind == "embedded" else listing.find_model(base, target["openrouter_model"], key)
    )
    model, facts = entry["id"], listing.model_facts(entry)
    if kind == "openrouter" and facts["distillable"] is None:
        facts["distillable"] = listing.is_distillable(base, model, key)
    return model, facts, listing.read_endpoints(base, model, key)


def _check_facts(model: str, facts: dict[str, Any], policy: Policy, target: dict[str, Any]) -> None:
    """Raise when the model itself cannot serve the run."""
    expiry = facts.get("expiration_date")
    if expiry and str(expiry)[:10] < datetime.now(UTC).date().isoformat():
        raise EyrieError(f"{model}: retired on {expiry}; choose another model", code=ExitCode.POLICY_EMPTY)
    if expiry:
        print(f"{model}: note: retires on {expiry}", file=sys.stderr)
    if policy.distillable and not facts.get("distillable"):
        raise EyrieError(
            f"{model}: the catalogue does not mark it distillable, and gateway.policy.distillable demands it",
            code=ExitCode.POLICY_EMPTY,
        )
    reasoning = facts.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("mandatory") and target.get("thinking") is False:
        raise InputError(f"{model}: always reasons, so target.thinking=false cannot be had; set it to true or null")
