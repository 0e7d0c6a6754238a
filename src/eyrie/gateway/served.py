"""Ask an OpenAI-compatible server what it serves."""

from __future__ import annotations

from typing import Any

from eyrie.errors import InputError
from eyrie.gateway.fetch import get_json
from eyrie.gateway.key import NO_KEY, ApiKey
from eyrie.gateway.providers import Endpoint

NAME = "server"  # tag and provider name of its one endpoint


def served_model(base: str, wanted: str, key: ApiKey = NO_KEY) -> dict[str, Any]:
    """The entry of `GET /models` for `wanted`; with a single model there is no doubt, whatever its name (engines
    call it by its path). Raises InputError naming what is served instead, MissingError when no server answers."""
    value = get_json(base, "models", key)
    data = value.get("data") if isinstance(value, dict) else None
    entries = [e for e in data if isinstance(e, dict) and e.get("id")] if isinstance(data, list) else []
    if not entries:
        raise InputError(f"{base}/models: not a model listing; gateway.base_url must be an OpenAI-compatible address")
    for entry in entries if len(entries) > 1 else ():
        if entry["id"] == wanted:
            return entry
    if len(entries) == 1:
        return entries[0]
    ids = ", ".join(str(entry["id"]) for entry in entries[:5])
    raise InputError(f"{base}/models: serves {ids}, not {wanted}; serve the target under that name")


def context_of(entry: dict[str, Any]) -> int | None:
    """Tokens of prompt and answer together; SGLang and vLLM say it as `max_model_len`."""
    value = entry.get("max_model_len") or entry.get("context_length")
    return value if type(value) is int and value > 0 else None


def endpoint(context: int | None) -> Endpoint:
    """The one endpoint of a server of one's own: free, of no declared precision, taking what OpenAI's API takes."""
    return Endpoint(
        NAME, NAME, None, 0, None, context or 0, context, "0", "0", "0",
        ("max_tokens", "seed", "stop", "temperature", "tools", "top_p"),
    )  # fmt: skip
