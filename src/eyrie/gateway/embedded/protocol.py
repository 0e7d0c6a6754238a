"""OpenRouter's wire protocol as the embedded server speaks it: requests checked, replies and errors in its shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyrie.files import canonical_json, fingerprint

PROVIDER = "Embedded"
TAG = "embedded/fp32"
PARAMETERS = ["max_completion_tokens", "max_tokens", "seed", "stop", "temperature", "top_k", "top_p"]


class ProtocolError(Exception):
    """A request that gets an error reply: HTTP status, message and OpenRouter's `error_type`."""

    def __init__(self, status: int, message: str, error_type: str) -> None:
        super().__init__(message)
        self.status, self.error_type = status, error_type

    def body(self) -> dict[str, Any]:
        """The error envelope."""
        return {"error": {"code": self.status, "message": str(self), "metadata": {"error_type": self.error_type}}}


@dataclass(frozen=True)
class Served:
    """What the catalogue says of the model."""

    model: str  # AUTHOR/SLUG
    name: str
    context: int  # tokens, prompt and answer together


@dataclass(frozen=True)
class ChatRequest:
    """A checked chat completion request. `max_tokens` None = all that the context leaves."""

    generation_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    thinking: bool | None
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: tuple[str, ...]
    stream: bool
    return_token_ids: bool


def parse_request(raw: bytes, served: Served) -> ChatRequest:
    """Check a request's body. Raises ProtocolError (400, or 404 for another model).

    Unknown fields are ignored, as OpenRouter ignores parameters that an endpoint lacks. The generation id and, where
    the body gives none, the seed are hashes of the body: equal requests get equal replies.
    """
    try:
        body = json.loads(raw)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(400, f"the request's body is not JSON: {error}", "invalid_request") from None
    if not isinstance(body, dict):
        raise ProtocolError(400, "the request's body must be a JSON object", "invalid_request")
    if body.get("model") != served.model:
        raise ProtocolError(404, f"no such model: {body.get('model')!r}; this server has {served.model}", "not_found")
    try:
        mark = fingerprint(body, length=24)
    except ValueError:
        raise ProtocolError(400, "NaN and infinity are no JSON numbers", "invalid_request") from None
    stop = _field(body, "stop", (str, list), [])
    limit = _number(body, "max_completion_tokens", int, None, 1) or _number(body, "max_tokens", int, None, 1)
    if _number(body, "n", int, 1, 1) != 1:
        raise ProtocolError(400, "n must be 1", "invalid_request")
    return ChatRequest(
        generation_id=f"gen-{mark}",
        messages=_messages(body),
        tools=_field(body, "tools", (list,), None),
        thinking=_thinking(body),
        max_tokens=limit,
        temperature=_number(body, "temperature", float, 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", float, 1.0, 1e-6, 1.0),
        top_k=_number(body, "top_k", int, 0, 0),
        seed=_number(body, "seed", int, int(mark[:12], 16)) % 2**63,
        stop=_stop_strings([stop] if isinstance(stop, str) else stop),
        stream=_field(body, "stream", (bool,), False),
        return_token_ids=_field(body, "return_token_ids", (bool,), False),
    )


def _field(body: Mapping[str, Any], name: str, kinds: tuple[type, ...], default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ProtocolError(400, f"{name} must be {names}, not {type(value).__name__}", "invalid_request")
    return value


def _number(
    body: Mapping[str, Any], name: str, kind: type, default: Any, low: float = -math.inf, high: float = math.inf
) -> Any:
    value = body.get(name)
    if value is None:
        return default
    whole = isinstance(value, int) or (isinstance(value, float) and kind is float)
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise ProtocolError(400, f"{name}={value!r} must be {kind.__name__} in [{low}, {high}]", "invalid_request")
    return kind(value)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = _field(body, "messages", (list,), [])
    if not messages:
        raise ProtocolError(400, "messages is empty", "invalid_request")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ProtocolError(400, f"messages[{number}] must be an object with a role", "invalid_request")
    return messages


def _stop_strings(values: Sequence[Any]) -> tuple[str, ...]:
    if len(values) > 4 or not all(isinstance(value, str) and value for value in values):
        raise ProtocolError(400, "stop must be at most 4 strings, none of them empty", "invalid_request")
    return tuple(values)


def _thinking(body: Mapping[str, Any]) -> bool | None:
    """The reasoning switch in either spelling: OpenRouter's `reasoning.enabled`, or the chat template's own."""
    reasoning = _field(body, "reasoning", (dict,), {})
    template = _field(body, "chat_template_kwargs", (dict,), {})
    return _field({"thinking": template.get("thinking", reasoning.get("enabled"))}, "thinking", (bool,), None)


def context_error(served: Served, prompt: int, wanted: int) -> ProtocolError:
    """400 for a prompt that leaves no room for its answer."""
    return ProtocolError(
        400,
        f"this endpoint's maximum context length is {served.context} tokens; the request needs {prompt + wanted} "
        f"({prompt} of the prompt, {wanted} of the answer); shorten either",
        "context_length_exceeded",
    )


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """The usage block; a model on this machine costs nothing."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cost": 0,
        "is_byok": False,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "cost_details": {
            "upstream_inference_cost": None,
            "upstream_inference_prompt_cost": 0,
            "upstream_inference_completions_cost": 0,
        },
    }


def envelope(served: Served, generation_id: str, kind: str, created: int) -> dict[str, Any]:
    """What every reply and every streamed chunk starts with; `kind` is chat.completion or chat.completion.chunk."""
    return {
        "id": generation_id,
        "object": kind,
        "created": created,
        "model": served.model,
        "provider": PROVIDER,
        "system_fingerprint": None,
    }


def completion(
    served: Served, request: ChatRequest, created: int, prompt: Sequence[int], ids: Sequence[int], text: str,
    finish_reason: str,
) -> dict[str, Any]:  # fmt: skip
    """A whole reply. With `return_token_ids` it carries the ids as vLLM spells them."""
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": finish_reason,
        "native_finish_reason": finish_reason,
        "logprobs": None,
        "message": {"role": "assistant", "content": text, "refusal": None, "reasoning": None},
    }
    reply = {**envelope(served, request.generation_id, "chat.completion", created), "choices": [choice]}
    if request.return_token_ids:
        choice["token_ids"] = list(ids)
        reply["prompt_token_ids"] = list(prompt)
    return {**reply, "usage": usage(len(prompt), len(ids))}


def models(served: Served, created: int) -> dict[str, Any]:
    """GET /models"""
    return {
        "data": [
            {
                "id": served.model,
                "canonical_slug": served.model,
                "name": served.name,
                "created": created,
                "description": f"{served.name} in a child process of this machine",
                "context_length": served.context,
                "architecture": _architecture(),
                "pricing": {"prompt": "0", "completion": "0", "request": "0", "image": "0"},
                "top_provider": {
                    "context_length": served.context,
                    "max_completion_tokens": served.context,
                    "is_moderated": False,
                },
                "per_request_limits": None,
                "supported_parameters": PARAMETERS,
                "default_parameters": None,
                "expiration_date": None,
                "is_distillable": True,
                "links": {"details": f"/api/v1/models/{served.model}/endpoints"},
            }
        ]
    }


def endpoints(served: Served, created: int) -> dict[str, Any]:
    """GET /models/AUTHOR/SLUG/endpoints"""
    endpoint = {
        "name": f"{PROVIDER} | {served.model}",
        "model_name": served.name,
        "model_id": served.model,
        "provider_name": PROVIDER,
        "tag": TAG,
        "quantization": "fp32",
        "status": 0,
        "uptime_last_5m": None,
        "uptime_last_30m": None,
        "uptime_last_1d": None,
        "latency_last_30m": None,
        "throughput_last_30m": None,
        "context_length": served.context,
        "max_completion_tokens": served.context,
        "max_prompt_tokens": None,
        "supported_parameters": PARAMETERS,
        "supports_implicit_caching": False,
        "pricing": {"prompt": "0", "completion": "0", "request": "0", "image": "0", "discount": 0},
    }
    return {
        "data": {
            "id": served.model,
            "name": served.name,
            "created": created,
            "description": "",
            "architecture": _architecture(),
            "endpoints": [endpoint],
        }
    }


def _architecture() -> dict[str, Any]:
    return {
        "modality": "text->text",
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "tokenizer": "Other",
        "instruct_type": None,
    }


def key() -> dict[str, Any]:
    """GET /key: no key, no limit, nothing spent."""
    return {
        "data": {
            "label": "embedded",
            "limit": None,
            "limit_remaining": None,
            "limit_reset": None,
            "usage": 0,
            "usage_daily": 0,
            "usage_weekly": 0,
            "usage_monthly": 0,
            "byok_usage": 0,
            "is_free_tier": False,
            "is_management_key": False,
            "include_byok_in_limit": False,
            "expires_at": None,
        }
    }


def generation(served: Served, request: ChatRequest, created: str, prompt: int, completion_: int, finish: str,
               seconds: float) -> dict[str, Any]:  # fmt: skip
    """GET /generation?id=: what became of an answer."""
    return {
        "data": {
            "id": request.generation_id,
            "model": served.model,
            "provider_name": PROVIDER,
            "created_at": created,
            "total_cost": 0,
            "usage": 0,
            "upstream_inference_cost": None,
            "is_byok": False,
            "streamed": request.stream,
            "cancelled": False,
            "finish_reason": finish,
            "native_finish_reason": finish,
            "tokens_prompt": prompt,
            "tokens_completion": completion_,
            "native_tokens_prompt": prompt,
            "native_tokens_completion": completion_,
            "native_tokens_reasoning": 0,
            "native_tokens_cached": 0,
            "latency": round(seconds * 1000),
            "generation_time": round(seconds * 1000),
        }
    }


def encode(value: Any) -> bytes:
    """A reply's bytes."""
    return canonical_json(value).encode()
