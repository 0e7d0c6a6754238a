"""What the double answers: a pure function of what was asked, whoever asks and however often."""

from __future__ import annotations

import hashlib
import json
import math
from statistics import NormalDist
from typing import Any

WORDS = "the target says what it says and it says the same again when asked the same way in this small world".split()
NORMAL = NormalDist()


def digest(body: bytes) -> str:
    """Hex SHA-256 of a request: what the response cache compares."""
    return hashlib.sha256(body).hexdigest()


def chance(body: bytes, nth: int, salt: str) -> float:
    """A number in [0, 1) fixed by the request, how often it came, and `salt`: faults are reproducible."""
    text = f"{salt} {nth} {digest(body)}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64


def asked(request: dict[str, Any]) -> bytes:
    """The part of a request that decides the answer: which endpoints are allowed does not."""
    return json.dumps([request.get(k) for k in ("messages", "seed", "temperature")]).encode()


def tokens_of(request: dict[str, Any], script: dict[str, Any]) -> int:
    """Output tokens that the target would like to say."""
    wanted, seed = script["tokens"], digest(asked(request))
    if isinstance(wanted, dict):
        median = wanted["median"]
        sigma = math.log(wanted["p99"] / median) / NORMAL.inv_cdf(0.99)
        point = min(max(chance(asked(request), 0, "tokens"), 1e-9), 1 - 1e-9)
        return max(1, round(median * math.exp(sigma * NORMAL.inv_cdf(point))))
    low, high = wanted
    return low + int(seed[:8], 16) % (high - low + 1)


def message_of(request: dict[str, Any], count: int, script: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """(assistant message of `count` tokens, finish reason) before any limit.

    A user message `TOOL name` is answered with a call of that tool, `SAY x` with x.
    """
    seed = digest(asked(request))
    last = request["messages"][-1]
    said = last.get("content") if isinstance(last.get("content"), str) else ""
    words = (WORDS[int(seed[i % 60 : i % 60 + 4], 16) % len(WORDS)] for i in range(min(count, script["words"])))
    message: dict[str, Any] = {"role": "assistant", "content": " ".join(words)}
    if said.startswith("SAY "):
        message["content"] = said[4:]
    if request.get("reasoning", {}).get("enabled"):
        message["reasoning"] = "thinking \u2028 about it"
        message["reasoning_details"] = [{"type": "reasoning.text", "text": message["reasoning"], "signature": seed[:8]}]
    if last["role"] == "user" and said.startswith("TOOL "):
        name = said[5:].split()[0]
        call = {"id": f"call_{seed[:8]}", "type": "function", "function": {"name": name, "arguments": '{"q": 1}'}}
        return {**message, "content": None, "tool_calls": [call]}, "tool_calls"
    return message, "stop"


def prompt_tokens(request: dict[str, Any]) -> int:
    """The native tokenizer's count of the prompt, four bytes to a token."""
    return len(json.dumps([request["messages"], request.get("tools") or []])) // 4


def completion(
    request: dict[str, Any], script: dict[str, Any], shown: dict[str, Any], generation_id: str, *, long: bool = False
) -> dict[str, Any]:
    """A whole chat completion by endpoint `shown`; `long` runs until it is cut. Its usage has no cost yet."""
    limit = request.get("max_tokens") or request.get("max_completion_tokens") or 100
    count = limit + 1 if long else tokens_of(request, script)
    done = min(count, limit)
    message, finish = message_of(request, done, script)
    prompt = prompt_tokens(request)
    thought = min(done, 4) if "reasoning" in message else 0
    return {
        "id": generation_id, "object": "chat.completion", "created": 0, "model": request["model"],
        "provider": shown["provider_name"], "system_fingerprint": None,
        "choices": [{"index": 0, "finish_reason": "length" if count > limit else finish, "logprobs": None,
                     "native_finish_reason": "length" if count > limit else finish, "message": message}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done,
                  "is_byok": False, "prompt_tokens_details": {"cached_tokens": 0},
                  "completion_tokens_details": {"reasoning_tokens": thought}},
    }  # fmt: skip
