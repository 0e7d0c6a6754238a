"""Read the gateway's catalogue: the model's facts and its endpoints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from eyrie.errors import InputError
from eyrie.gateway.fetch import get_json
from eyrie.gateway.key import NO_KEY, ApiKey
from eyrie.gateway.providers import Endpoint
from eyrie.gateway.request import plain
from eyrie.gateway.served import context_of, endpoint, served_model
from eyrie.vault.money import decimal

FACTS = ("canonical_slug", "context_length", "expiration_date")


def find_model(base: str, model: str, key: ApiKey = NO_KEY) -> dict[str, Any]:
    """The model's entry in `GET /models`. Raises InputError when it is not listed, naming the nearest ids."""
    entries = _list(get_json(base, "models", key), f"{base}/models")
    ids = [str(entry.get("id")) for entry in entries]
    for entry in entries:
        if entry.get("id") == model:
            return entry
    near = difflib.get_close_matches(model, ids, n=3, cutoff=0.4) or ids[:3]
    raise InputError(f"{base}/models: no model {model}; the nearest are {', '.join(near) or 'none'}")


def only_model(base: str) -> dict[str, Any]:
    """The entry of the one model that the embedded gateway serves, under the name that it gives itself."""
    entries = _list(get_json(base, "models"), f"{base}/models")
    if len(entries) != 1:
        raise InputError(f"{base}/models: {len(entries)} models; the embedded gateway serves one")
    return entries[0]


def read_endpoints(base: str, model: str, key: ApiKey = NO_KEY) -> list[Endpoint]:
    """The model's endpoints from `GET /models/{model}/endpoints`, in the order of their tags."""
    path = f"models/{model}/endpoints"
    value = get_json(base, path, key)
    data = value.get("data") if isinstance(value, dict) else None
    items = data.get("endpoints") if isinstance(data, dict) else None
    if not isinstance(items, list):
        raise InputError(f"{base}/{path}: not an endpoint listing")
    return sorted((parse_endpoint(item) for item in items), key=lambda e: (e.tag, e.provider_name))


def parse_endpoint(item: dict[str, Any]) -> Endpoint:
    """One entry of the listing. A missing status counts as 0 (up); prices are the highest that can apply."""
    pricing = item.get("pricing") or {}
    try:
        return Endpoint(
            tag=item["tag"],
            provider_name=item["provider_name"],
            quantization=item.get("quantization"),
            status=item.get("status") or 0,
            uptime_1d=item.get("uptime_last_1d"),
            context_length=item.get("context_length") or 0,
            max_completion_tokens=item.get("max_completion_tokens"),
            prompt_price=plain(highest_price(pricing, "prompt")),
            completion_price=plain(highest_price(pricing, "completion")),
            request_price=plain(highest_price(pricing, "request")),
            supported_parameters=tuple(sorted(item.get("supported_parameters") or ())),
        )
    except KeyError as error:
        raise InputError(f"endpoint listing: an endpoint without {error} ({item.get('name')})") from None


def highest_price(pricing: dict[str, Any], name: str) -> Decimal:
    """USD per token after the discount, at the dearest override: what a reservation must hold.

    Raises InputError when a price is no number or negative (a router's "-1" is no price).
    """
    prices = [pricing.get(name, "0"), *(o[name] for o in pricing.get("overrides") or () if name in o)]
    discount = decimal(pricing.get("discount") or 0)
    found = [decimal(price) for price in prices]
    if discount is None or not 0 <= discount <= 1 or any(price is None or price < 0 for price in found):
        raise InputError(f"endpoint listing: price {name}={prices} with discount {pricing.get('discount')} is no price")
    return max(price for price in found if price is not None) * (1 - discount)


def model_facts(entry: dict[str, Any]) -> dict[str, Any]:
    """What a run must know of the model: context, expiry, reasoning switch, whether training on it is allowed."""
    return {
        **{name: entry.get(name) for name in FACTS},
        "distillable": entry.get("is_distillable", entry.get("distillable")),
        "reasoning": entry.get("reasoning"),
    }


def is_distillable(base: str, model: str, key: ApiKey = NO_KEY) -> bool:
    """Whether the model is among `GET /models?distillable=true`, the catalogue's documented filter."""
    entries = _list(get_json(base, "models?distillable=true", key), f"{base}/models")
    return any(entry.get("id") == model for entry in entries)


def openai_server(base: str, target: str, key: ApiKey = NO_KEY) -> tuple[str, dict[str, Any], list[Endpoint]]:
    """(model id, facts, its one free endpoint) of an OpenAI-compatible server (`served_model`)."""
    entry = served_model(base, target, key)
    context = context_of(entry)
    return str(entry["id"]), {**model_facts(entry), "context_length": context}, [endpoint(context)]


def _list(value: Any, url: str) -> list[dict[str, Any]]:
    data = value.get("data") if isinstance(value, dict) else None
    if not isinstance(data, Iterable) or isinstance(data, str | dict):
        raise InputError(f"{url}: not a model listing")
    return [entry for entry in data if isinstance(entry, dict)]
