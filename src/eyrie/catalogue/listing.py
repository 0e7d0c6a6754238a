"""Read the gateway's catalogue: the model's facts and its endpoints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from eyrie.errors import InputError
from eyrie.gateway.fetch import get_json, scan_items
from eyrie.gateway.key import NO_KEY, ApiKey
from eyrie.gateway.prices import dearest, kept
from eyrie.gateway.providers import Endpoint
from eyrie.gateway.request import plain
from eyrie.gateway.served import context_of, endpoint, served_model

FACTS = ("canonical_slug", "name", "context_length", "expiration_date")


def find_model(base: str, model: str, key: ApiKey = NO_KEY) -> dict[str, Any]:
    """The model's entry in `GET /models`, which is read only as far as that.

    Raises InputError when it is not listed, naming the nearest ids.
    """
    ids: list[str] = []

    def take(entries: Iterator[Any]) -> dict[str, Any] | None:
        ids.clear()
        for entry in entries:
            if isinstance(entry, dict) and entry.get("id") == model:
                return entry
            ids.append(str(entry.get("id")) if isinstance(entry, dict) else "")
        return None

    found = scan_items(base, "models", take, key)
    if found is None:
        near = difflib.get_close_matches(model, ids, n=3, cutoff=0.4) or ids[:3]
        raise InputError(
            f"{base}/models: no model {model} (target.openrouter_model); the nearest are {', '.join(near) or 'none'}"
        )
    return found


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
    """One entry of the listing. A missing status counts as 0 (up); the three prices are the highest that can apply,
    `pricing` says when which does."""
    try:
        pricing = kept(item.get("pricing") or {})
        highest = dearest(pricing)
        return Endpoint(
            tag=item["tag"],
            provider_name=item["provider_name"],
            quantization=item.get("quantization"),
            status=item.get("status") or 0,
            uptime_1d=item.get("uptime_last_1d"),
            uptime_30m=item.get("uptime_last_30m"),
            context_length=item.get("context_length") or 0,
            max_completion_tokens=item.get("max_completion_tokens"),
            max_prompt_tokens=item.get("max_prompt_tokens"),
            prompt_price=plain(highest.prompt),
            completion_price=plain(highest.completion),
            request_price=plain(highest.request),
            supported_parameters=tuple(sorted(item.get("supported_parameters") or ())),
            pricing=pricing,
        )
    except KeyError as error:
        raise InputError(f"endpoint listing: an endpoint without {error} ({item.get('name')})") from None
    except InputError as error:
        raise InputError(f"{error} ({item.get('tag')})") from None


def model_facts(entry: dict[str, Any]) -> dict[str, Any]:
    """What a run must know of the model: context, expiry, reasoning switch, whether training on it is allowed."""
    return {
        **{name: entry.get(name) for name in FACTS},
        "distillable": entry.get("is_distillable", entry.get("distillable")),
        "reasoning": entry.get("reasoning"),
    }


def is_distillable(base: str, model: str, key: ApiKey = NO_KEY) -> bool:
    """Whether the model is among `GET /models?distillable=true`, the catalogue's documented filter."""

    def take(entries: Iterator[Any]) -> bool:
        return any(isinstance(entry, dict) and entry.get("id") == model for entry in entries)

    return scan_items(base, "models?distillable=true", take, key)


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
