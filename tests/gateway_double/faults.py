"""The ways in which the double fails, as data: before a provider starts (nothing is billed) and after it did.

early   400 408 413 422 429 500 502 503 504 524 529    the status, with OpenRouter's error envelope
        401 402 404 403_moderated 403_limit            refusals of the row or of the run
        html edge_1015                                 pages of whatever stands in between
        reset hang                                     the connection breaks; nothing ever comes
late    504_billed 524_billed                          a timeout at the edge; the provider went on and bills
        inband inband_429 inband_text inband_partial   errors inside a 200, refunded
        empty html200 no_choices null_choice           200s without an answer, refunded
        blank content_filter refusal odd_finish        the row's own faults, billed
        wrong_provider wrong_model loop leak           answers that must not be used, billed
        no_usage string_usage                          answers without a readable bill
        long                                           an answer that runs until it is cut
        cut drop                                       half the body; none of it
        gone                                           the connection breaks at once; the provider goes on and bills
        slow drip                                      late; one byte at a time
        evict                                          an answer that the response cache does not keep
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

HTML = b"<html><body>Bad gateway</body></html>"
STATUS = {name: int(name) for name in ("400", "408", "413", "422", "429", "500", "502", "503", "504", "524", "529")}
ERROR_TYPES = {400: "invalid_request", 429: "rate_limit_exceeded", 500: "server", 502: "provider_unavailable",
               503: "provider_unavailable", 504: "timeout", 524: "timeout", 529: "provider_overloaded"}  # fmt: skip
WHOLE = (
    None,
    "slow",
    "drip",
    "cut",
    "drop",
    "gone",
    "no_usage",
    "string_usage",
    "evict",
    "long",
    "no_done",
)  # a whole answer was made
REFUNDED = (
    "echo",
    "inband",
    "inband_429",
    "inband_text",
    "inband_partial",
    "empty",
    "html200",
    "no_choices",
    "null_choice",
)


@dataclass
class Outcome:
    """What goes out: status, headers, bytes (None = hang up without a word), and how: "cut", "drip", "hang"."""

    status: int
    data: bytes | None
    headers: dict[str, str] = field(default_factory=dict)
    manner: str = ""


def error(code: Any, message: str, **more: Any) -> bytes:
    """OpenRouter's error envelope."""
    return json.dumps({"error": {"code": code, "message": message, **more}}).encode()


def early(fault: str | None, script: dict[str, Any]) -> Outcome | None:
    """Faults before any provider started: nothing is billed."""
    if fault in STATUS:
        code = STATUS[fault]
        headers = {"Retry-After": str(script["retry_after"])} if fault in ("429", "503") else {}
        if fault == "429":
            headers |= {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "0"}
        metadata = {"raw": "upstream words", "error_type": ERROR_TYPES.get(code, "unmapped")}
        return Outcome(code, error(code, f"scripted {fault}", metadata=metadata), headers)
    if fault == "402":
        return short_of_credits(4096, 12, "account")
    fixed = {
        "401": (401, error(401, "User not found.")),
        "403_moderated": (403, error(403, "Input was flagged",
                                     metadata={"reasons": ["violence"], "flagged_input": "..."})),
        "403_limit": (403, error(403, "Key limit exceeded (total limit)")),
        "404": (404, error(404, "No endpoints found", availability={"code": "constraint_filtered"})),
        "html": (502, HTML),
        "edge_1015": (429, b"error code: 1015"),
    }  # fmt: skip
    if fault in fixed:
        kind = "text/html" if fault in ("html", "edge_1015") else "application/json"
        return Outcome(*fixed[fault], headers={"Content-Type": kind})
    if fault in ("reset", "hang"):
        return Outcome(0, None, manner=fault)
    return None


def short_of_credits(asked: int, affordable: int, source: str) -> Outcome:
    """The pre-flight refusal of an account or a key that cannot pay the worst case of this request."""
    text = (
        "This request requires more credits, or fewer max_tokens. "
        f"You requested up to {asked} tokens, but can only afford {affordable}."
    )
    return Outcome(402, error(402, text, metadata={"limit_source": source, "error_type": "payment_required"}))


def late(fault: str | None, reply: dict[str, Any]) -> Outcome:
    """The reply to a request that a provider worked on; `reply` is the answer that it would have been."""
    choice, provider = reply["choices"][0], reply["provider"]
    metadata = {"provider_name": provider, "raw": "upstream words"}
    if fault in ("504_billed", "524_billed"):
        code = int(fault[:3])
        return Outcome(code, error(code, "timed out", metadata={"error_type": "timeout"}))
    if fault in ("inband", "inband_429", "inband_text"):
        code = {"inband": 502, "inband_429": 429, "inband_text": "server_error"}[fault]
        return Outcome(200, error(code, "Provider returned error", metadata=metadata))
    if fault == "echo":
        return Outcome(200, error(502, "Provider refused {key}", metadata={**metadata, "raw": "bad token {key}"}))
    if fault in ("empty", "html200"):
        return Outcome(200, b"" if fault == "empty" else HTML)
    if fault == "inband_partial":
        choice |= {"finish_reason": "error", "error": {"code": 502, "message": "upstream died", "metadata": metadata}}
        del reply["usage"]
    elif fault in ("no_choices", "null_choice"):
        reply["choices"] = [] if fault == "no_choices" else [None]
        del reply["usage"]
    elif fault == "blank":
        choice["message"] = {"role": "assistant", "content": None}
    elif fault == "content_filter":
        choice["finish_reason"] = "content_filter"
    elif fault == "refusal":
        choice["message"] |= {"content": None, "refusal": "I cannot help with that."}
    elif fault == "odd_finish":
        choice["finish_reason"] = "weird"
    elif fault == "wrong_provider":
        reply["provider"] = "Gamma"
    elif fault == "wrong_model":
        reply["model"] = "maker/other"
    elif fault == "loop":
        choice["message"]["content"] = "and again " * 400
    elif fault == "echo_answer":
        choice["message"]["content"] = "You are {key}."
    elif fault == "leak":
        choice["message"]["content"] = "Sure.<|im_end|><|im_assistant|>assistant<|im_middle|> Sure."
    elif fault == "no_usage":
        del reply["usage"]
    elif fault == "string_usage":
        reply["usage"] = "see invoice"
    data = encode(reply)
    if fault == "drop":
        return Outcome(0, None, manner="reset")
    return Outcome(200, data, manner=fault if fault in ("cut", "drip") else "")


def encode(reply: dict[str, Any]) -> bytes:
    """JSON as OpenRouter's JavaScript writes it: U+2028 raw; a lone surrogate can only travel escaped."""
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return json.dumps(reply).encode() if b"\xed" in data else data


def refunded(fault: str | None, cost: Decimal) -> Decimal:
    """What is billed for a generation that ended in `fault`."""
    return Decimal(0) if fault in REFUNDED else cost
