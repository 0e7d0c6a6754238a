"""Find out which endpoints serve the target, and which of them may answer.

Reads the gateway's catalogue (free, no key needed) and judges each endpoint by gateway.policy: precision, status,
uptime, price, context, parameters. providers.json lists the accepted and the rejected ones, each with every reason.
An empty list is an error that says what would have to change; it is never loosened.

    eyrie providers --slice "$(eyrie config --slice providers)" --runtime "$(eyrie config --runtime)" \\
        --target results/laptop/target.json --output results/laptop/providers.json
    eyrie providers --show results/laptop/providers.json
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eyrie.catalogue import listing
from eyrie.catalogue.policy import Policy, demand_some, judge
from eyrie.config import load_slice
from eyrie.errors import ExitCode, EyrieError, InputError, MissingError
from eyrie.files import read_json, write_json
from eyrie.gateway import served
from eyrie.gateway.key import NO_KEY, ApiKey, read_key
from eyrie.gateway.launch import Launch
from eyrie.gateway.local import open_gateway
from eyrie.gateway.providers import FORMAT, Endpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print this providers.json as a table, do nothing else"
    )
    parser.add_argument("--slice", metavar="JSON", help="`eyrie config --slice providers`")
    parser.add_argument("--runtime", metavar="JSON", help="`eyrie config --runtime`: the gateway's address")
    parser.add_argument("--target", type=Path, help="target.json; needed by the embedded gateway only")
    parser.add_argument("--output", type=Path, help="providers.json")


def run(args: argparse.Namespace) -> int:
    if args.show:
        return _show(args.show)
    if not (args.slice and args.runtime and args.output):
        raise InputError("--slice, --runtime and --output are needed (or --show FILE)")
    cut, gateway = load_slice(args.slice), load_slice(args.runtime)["gateway"]
    kind = cut["gateway"]["kind"]
    policy = Policy.read(cut["gateway"]["policy"])
    key = _optional_key(kind, gateway["api_key_file"])
    if Launch.read(gateway.get("launch")) is not None:  # each generate job starts it; loading it to list it is dear
        model, facts, endpoints = cut["target"]["name"], listing.model_facts({}), [served.endpoint(None)]
    else:
        with open_gateway(kind, gateway["base_url"], target=args.target, catalogue_only=True) as opened:
            model, facts, endpoints = _read(kind, opened.url, cut["target"], policy, key)
    _check_facts(model, facts, policy, cut["target"])
    # One server that the user chose himself is not judged: there is nothing to choose from.
    accepted, rejected = (endpoints, []) if kind == "openai" else judge(policy, endpoints)
    demand_some(model, accepted, rejected)
    write_json(
        args.output,
        {
            "format": FORMAT,
            "gateway": kind,
            "model": model,
            "model_facts": facts,
            "accepted": [e.to_json() for e in accepted],
            "rejected": [{**e.to_json(), "reasons": why} for e, why in rejected],
            "policy": cut["gateway"]["policy"],
            # The embedded gateway's offer never changes, so its list is the same bytes on every day.
            "time": None if kind == "embedded" else datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    print(f"{model}: {len(accepted)} endpoints accepted, {len(rejected)} rejected", file=sys.stderr)
    return 0


def _optional_key(kind: str, api_key_file: str | None) -> ApiKey:
    """The catalogue is public: a machine without a key may read it."""
    try:
        return read_key(kind, api_key_file)
    except MissingError:
        return NO_KEY


def _read(
    kind: str, base: str, target: dict[str, Any], policy: Policy, key: ApiKey
) -> tuple[str, dict[str, Any], list[Endpoint]]:
    if kind == "openai":
        return listing.openai_server(base, target["name"], key)
    entry = (
        listing.only_model(base) if kind == "embedded" else listing.find_model(base, target["openrouter_model"], key)
    )
    model, facts = entry["id"], listing.model_facts(entry)
    if policy.distillable and facts["distillable"] is None:
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


def _show(path: Path) -> int:
    from rich.console import Console

    from eyrie.catalogue.table import show

    value = read_json(path, hint="run `snakemake providers`")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InputError(f"{path}: not a provider list ({FORMAT})")
    show(value, Console(width=None if sys.stdout.isatty() else 160))
    return 0
