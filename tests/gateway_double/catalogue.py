"""The double's catalogue in OpenRouter's shapes. `script["others"]` are the models that stand before the target;
`script["model_facts"]` changes the target's entry, `script["endpoints"]` the endpoints' (any field)."""

from __future__ import annotations

from typing import Any

ARCHITECTURE = {
    "modality": "text->text", "input_modalities": ["text"], "output_modalities": ["text"], "tokenizer": "Other",
    "instruct_type": None,
}  # fmt: skip
PARAMETERS = ["include_reasoning", "max_tokens", "reasoning", "seed", "stop", "temperature", "tool_choice", "tools"]


def _entry(model: str, script: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": model, "canonical_slug": model + "-0127", "hugging_face_id": model, "name": model, "created": 1769472000,
        "description": "A model with a description of some length. " * 20,
        "context_length": 262144, "architecture": ARCHITECTURE,
        "pricing": {"prompt": script["prompt_price"], "completion": script["completion_price"],
                    "input_cache_read": "0.0000001"},
        "top_provider": {"context_length": 262144, "max_completion_tokens": None, "is_moderated": False},
        "per_request_limits": None, "supported_parameters": PARAMETERS, "default_parameters": {"temperature": None},
        "expiration_date": None, "links": {"details": f"/api/v1/models/{model}/endpoints"},
        "reasoning": {"mandatory": False, "default_enabled": True, "supported_efforts": None,
                      "supports_max_tokens": False},
    }  # fmt: skip


def listing(script: dict[str, Any], query: dict[str, list[str]]) -> dict[str, Any]:
    """`GET /models`; the filter `distillable` is heeded."""
    target = {**_entry(script["model"], script), **script.get("model_facts", {})}
    distillable = target.pop("distillable", True)
    others = [_entry(name, script) for name in script.get("others", ["other/model"])]
    if query.get("distillable") == ["true"]:
        return {"data": [*others, *([target] if distillable else [])]}
    return {"data": [*others, target]}


def endpoints(script: dict[str, Any]) -> dict[str, Any]:
    """`GET /models/{id}/endpoints`. Latency and throughput are null, as they are without a key."""
    model = script["model"]
    base = {
        "model_id": model + "-0127", "model_name": model, "context_length": 262144, "max_completion_tokens": None,
        "max_prompt_tokens": None, "status": 0, "uptime_last_5m": 99.9, "uptime_last_30m": 99.7,
        "uptime_last_1d": 99.5, "latency_last_30m": None, "throughput_last_30m": None,
        "supports_implicit_caching": False, "supported_parameters": PARAMETERS,
        "pricing": {"prompt": script["prompt_price"], "completion": script["completion_price"], "discount": 0},
    }  # fmt: skip
    listed = [{"name": f"{e['provider_name']} | {model}", **base, **e} for e in script["endpoints"]]
    data = {"id": model, "name": model, "created": 1769472000, "description": "", "architecture": ARCHITECTURE}
    return {"data": {**data, "endpoints": listed}}
