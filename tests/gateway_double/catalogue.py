"""The catalogue's shapes, and the routing that OpenRouter does with a request's `provider` block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.gateway_double.answers import chance

MILLION = Decimal(1_000_000)
ORDER = Decimal("0.000000000001")  # bills are rounded to this
ARCHITECTURE = {
    "modality": "text->text", "input_modalities": ["text"], "output_modalities": ["text"], "tokenizer": "Other",
    "instruct_type": None,
}  # fmt: skip
PARAMETERS = ["include_reasoning", "max_tokens", "reasoning", "seed", "stop", "temperature", "tool_choice", "tools"]
WIDER = {"fp4": ("fp4", "mxfp4", "nvfp4"), "fp8": ("fp8", "mxfp8")}  # a filter value and the kinds it lets in


def _entry(model: str, script: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": model, "canonical_slug": model + "-0127", "hugging_face_id": model, "name": model, "created": 1769472000,
        "description": "A model with a description of some length. " * 20, "context_length": 262144,
        "architecture": ARCHITECTURE, "expiration_date": None, "knowledge_cutoff": None,
        "top_provider": {"context_length": 262144, "max_completion_tokens": None, "is_moderated": False},
        "per_request_limits": None, "default_parameters": None, "supported_parameters": PARAMETERS,
        "links": {"details": f"/api/v1/models/{model}/endpoints"},
        "reasoning": {"mandatory": False, "default_enabled": True, "default_effort": None, "supported_efforts": None,
                      "supports_max_tokens": True},
        "pricing": {"prompt": script["prompt_price"], "completion": script["completion_price"]},
    }  # fmt: skip


def listing(script: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """`GET /models`: `others`, or `models` of them, before the target; `limit`, `offset`, `q` and `distillable` are
    heeded."""
    target = {**_entry(script["model"], script), **script["model_facts"]}
    distillable = target.pop("distillable", True)
    names = script["others"]
    if names is None:
        names = [f"other/model-{i}" for i in range(script["models"])]
    found = [_entry(name, script) for name in names]
    if distillable or query.get("distillable") != "true":
        found.append(target)
    if query.get("q"):
        found = [item for item in found if query["q"].lower() in item["id"].lower()]
    if "limit" in query:
        start = int(query.get("offset", 0))
        found = found[start : start + int(query["limit"])]
    return {"data": found}


def public(script: Mapping[str, Any], endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """An endpoint as the listing shows it: every field there, what only the double knows left out."""
    base = {
        "name": f"{endpoint['provider_name']}: {script['model']}", "model_name": script["model"],
        "model_id": script["model"] + "-0127", "status": 0, "uptime_last_5m": 99.9, "uptime_last_30m": 99.7,
        "uptime_last_1d": 99.5, "latency_last_30m": None, "throughput_last_30m": None, "context_length": 262144,
        "max_completion_tokens": None, "max_prompt_tokens": None, "supports_implicit_caching": False,
        "pricing": {"prompt": script["prompt_price"], "completion": script["completion_price"], "discount": 0},
        "supported_parameters": PARAMETERS,
    }  # fmt: skip
    return {**base, **{key: value for key, value in endpoint.items() if key != "double"}}


def endpoints(script: Mapping[str, Any]) -> dict[str, Any]:
    """`GET /models/{id}/endpoints`."""
    return {
        "data": {"id": script["model"], "name": script["model"], "created": 1769472000, "description": "",
                 "architecture": ARCHITECTURE, "endpoints": [public(script, item) for item in script["endpoints"]]}
    }  # fmt: skip


def price(shown: Mapping[str, Any], name: str, prompt_tokens: int) -> Decimal:
    """USD per token (or request) that a request of so many prompt tokens pays now: overrides, then the discount."""
    pricing = shown["pricing"]
    value = Decimal(str(pricing.get(name, "0")))
    now = f"{datetime.now(UTC):%H%M}"
    for override in pricing.get("overrides") or ():
        start, end = override.get("utc_start"), override.get("utc_end")
        inside = start is None or (start <= now < end if start <= end else now >= start or now < end)
        if name in override and inside and prompt_tokens > override.get("min_prompt_tokens", -1):
            value = Decimal(str(override[name]))
    return value * (1 - Decimal(str(pricing.get("discount") or 0)))


def cost(shown: Mapping[str, Any], prompt: int, completion: int, cached: int = 0) -> Decimal:
    """What one request is billed, in dollars."""
    read = price(shown, "input_cache_read", prompt) if cached else Decimal(0)
    total = (
        (prompt - cached) * price(shown, "prompt", prompt)
        + cached * read
        + completion * price(shown, "completion", prompt)
        + price(shown, "request", prompt)
    )
    return total.quantize(ORDER)


def allowed(script: Mapping[str, Any], request: Mapping[str, Any], prompt: int) -> tuple[list[dict[str, Any]], list]:
    """(endpoints that may answer, names of the constraints that excluded others)."""
    block = request.get("provider") or {}
    only, ignore = block.get("only"), block.get("ignore") or ()
    kinds = {kind for name in block.get("quantizations") or () for kind in WIDER.get(name, (name,))}
    highest = block.get("max_price") or {}
    found, excluded = [], set()
    for endpoint in script["endpoints"]:
        shown = public(script, endpoint)
        most = shown["max_completion_tokens"]
        reasons = {
            "allowed_providers": (only is not None and not _named(shown["tag"], only)) or _named(shown["tag"], ignore),
            "quantization": bool(kinds) and shown["quantization"] not in kinds,
            "max_price": any(
                price(shown, name, prompt) * MILLION > Decimal(str(limit)) for name, limit in highest.items()
            ),
            "max_completion_tokens": most is not None and (request.get("max_tokens") or 0) > most,
            "status": shown["status"] < 0,
        }
        excluded |= {name for name, truth in reasons.items() if truth}
        if not any(reasons.values()):
            found.append({**shown, "double": endpoint.get("double") or {}})
    return found, sorted(excluded)


def _named(tag: str, names: Any) -> bool:
    """Whether `names` holds the tag or its base slug."""
    return any(tag == name or tag.split("/")[0] == name for name in names)


def preference(candidates: list[dict[str, Any]], seed: bytes, sort: str | None = None) -> list[dict[str, Any]]:
    """`candidates` in the order in which they are tried: by `sort`, else at random with weight 1/price^2, fixed by
    `seed`.

    Weighted rendezvous: taking one away leaves the order of the others, so that a client which narrows `only` gets
    the same provider for the requests that the one left out would not have had.
    """

    def score(endpoint: dict[str, Any]) -> float:
        if sort == "price":
            return float(price(endpoint, "completion", 0))
        if sort == "throughput":
            return -endpoint["double"].get("tokens_per_s", 0.0)
        if sort == "latency":
            return endpoint["double"].get("first_token_s", 0.0)
        weight = 1 / max(float(price(endpoint, "completion", 0)), 1e-9) ** 2
        return -math.log(max(chance(seed, 0, endpoint["tag"]), 1e-12)) / weight

    return sorted(candidates, key=score)
