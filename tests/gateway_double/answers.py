"""What the double answers and bills: a pure function of the request's bytes."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

WORDS = "the target says what it says and it says the same again when asked the same way in this small world".split()


def digest(body: bytes) -> str:
    """Hex SHA-256 of a request: what the response cache compares."""
    return hashlib.sha256(body).hexdigest()


def chance(body: bytes, nth: int, salt: str) -> float:
    """A number in [0, 1) fixed by the request, how often it came, and `salt`: faults are reproducible."""
    text = f"{salt} {nth} {digest(body)}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64


def completion(request: dict[str, Any], body: bytes, script: dict[str, Any]) -> dict[str, Any]:
    """A whole chat completion. A user message `TOOL name` is answered with a call of that tool, `SAY x` with x."""
    seed = digest(json.dumps([request.get(k) for k in ("messages", "seed", "temperature")]).encode())
    last = request["messages"][-1]
    said = last.get("content") if isinstance(last.get("content"), str) else ""
    limit = request.get("max_tokens") or 100
    low, high = script["tokens"]
    count = low + int(seed[:8], 16) % (high - low + 1)
    words = [WORDS[int(seed[i % 60 : i % 60 + 4], 16) % len(WORDS)] for i in range(count)]
    finish, message = "stop", {"role": "assistant", "content": " ".join(words[:limit])}
    if count > limit:
        finish = "length"
    if said.startswith("SAY "):
        message["content"] = said[4:]
    if last["role"] == "user" and said.startswith("TOOL "):
        name = said[5:].split()[0]
        call = {"id": f"call_{seed[:8]}", "type": "function", "function": {"name": name, "arguments": '{"q": 1}'}}
        message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    if request.get("reasoning", {}).get("enabled"):
        message["reasoning"] = "thinking \u2028 about it"
        message["reasoning_details"] = [{"type": "reasoning.text", "text": message["reasoning"], "signature": seed[:8]}]
    prompt = len(json.dumps(request["messages"])) // 4
    done = min(count, limit)
    cost = prompt * Decimal(script["prompt_price"]) + done * Decimal(script["completion_price"])
    usage = {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done, "cost": float(cost)}
    return {
        "id": "gen-" + digest(body)[:20], "object": "chat.completion", "created": 0, "model": request["model"],
        "provider": script["endpoints"][int(seed[8:12], 16) % len(script["endpoints"])]["provider_name"],
        "choices": [{"index": 0, "finish_reason": finish, "native_finish_reason": finish, "message": message}],
        "usage": usage,
    }  # fmt: skip


DEFAULT_SCRIPT: dict[str, Any] = {
    "model": "maker/target",
    "prompt_price": "0.0000005",
    "completion_price": "0.0000022",
    "endpoints": [
        {"tag": "alpha/int4", "provider_name": "Alpha", "quantization": "int4"},
        {"tag": "beta/fp8", "provider_name": "Beta", "quantization": "fp8"},
    ],
    "keys": None,  # accepted keys; None = any
    "credits": None,  # dollars; None = without end
    "tokens": [5, 40],  # output tokens of an answer
    "latency": [0.0, 0.02],  # seconds
    "cache": True,
    "retry_after": 0.05,
    "rates": {},  # fault -> probability per request
    "plan": [],  # {"match": text in the request, "fault": name, "times": n}; before the rates
}
