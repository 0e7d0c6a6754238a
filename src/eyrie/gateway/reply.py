"""Classify a reply before it is stored: a usable answer, or a fault with its cost as far as it is known.

What the target says is data, whatever it says: a refusal in words is an answer. What a host did to it is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from typing import Any

from eyrie.gateway.errors import Blame, Fault, http_fault, inband_fault, tried
from eyrie.gateway.providers import ProviderList
from eyrie.gateway.quality import Quality, flaw
from eyrie.vault.money import decimal
from eyrie.vault.records import Usage


class Verdict(Enum):
    """What a stored answer is."""

    OK = "ok"
    LENGTH = "length"  # cut at max_tokens: a valid prefix of what the target says


FINISHED = {"stop": Verdict.OK, "tool_calls": Verdict.OK, "length": Verdict.LENGTH}
KEPT = ("content", "reasoning", "reasoning_content", "reasoning_details", "tool_calls")


@dataclass(frozen=True)
class Reply:
    """A reply, judged: either `verdict` or `fault` is set. `cost` in dollars, None = unknown."""

    raw: bytes = field(repr=False)
    verdict: Verdict | None = None
    fault: Fault | None = None
    usage: Usage = Usage()
    cost: Decimal | None = None
    provider: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    generation_id: str | None = None
    cached_from: str | None = None  # the response cache gave what this generation was paid for
    status: int | None = None
    byok: bool = False  # answered through the account's own provider key: `cost` is a fee, not the price
    tried: tuple[tuple[str, int | None], ...] = ()  # endpoints that failed first: provider name, status


@dataclass(frozen=True)
class Expected:
    """What a reply is held against."""

    providers: ProviderList
    kind: str  # openrouter | openai | embedded
    paid: bool  # false books every cost as 0
    thinking: bool | None = None  # the reasoning switch that was sent
    quality: Quality | None = None  # None: whatever the server says counts


def parse(raw: bytes) -> Any:
    """JSON of a reply's bytes; NaN and Infinity become null. Raises ValueError."""
    return json.loads(raw, parse_constant=lambda name: None)


def classify(
    status: int, headers: Mapping[str, str], raw: bytes, expected: Expected, problem: str | None = None
) -> Reply:
    """Judge one HTTP reply.

    `headers` with lower-case names. `problem` names what the transport found wrong with the body (`stream.Body`).
    The order of the checks follows what was billed: an error in the body comes before `choices`, since it may stand
    beside partial content.
    """
    generation = headers.get("x-generation-id")
    zero = None if expected.paid else Decimal(0)
    if status != 200:
        fault = http_fault(status, headers, raw)
        cost = zero if fault.maybe_billed else Decimal(0)
        return Reply(raw, fault=fault, cost=cost, generation_id=generation, status=status, tried=tried(_parsed(raw)))
    value = _parsed(raw)
    if not isinstance(value, dict):
        what = problem or _no_object(value, raw)
        detail = " ".join(raw[:120].decode("utf-8", "replace").split())
        fault = Fault(Blame.GATEWAY, what, detail, maybe_billed=True)
        return Reply(raw, fault=fault, cost=zero, generation_id=generation, status=status)
    return _judge(value, headers, raw, expected, problem)


def _parsed(raw: bytes) -> Any:
    """JSON of a body, None when it is none (bad UTF-8 included)."""
    try:
        return parse(raw)
    except (ValueError, RecursionError):
        return None


def _no_object(value: Any, raw: bytes) -> str:
    if value is not None:
        return "not_an_object"
    return "empty_body" if not raw.strip() else "html_body" if raw.lstrip()[:1] == b"<" else "cut_body"


def _judge(
    value: dict[str, Any], headers: Mapping[str, str], raw: bytes, expected: Expected, problem: str | None
) -> Reply:
    usage = value.get("usage") if isinstance(value.get("usage"), dict) else {}
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = message_of(choice)
    cost = decimal((usage or {}).get("cost")) if expected.paid else Decimal(0)
    if cost is not None and cost < 0:
        cost = None
    finish = choice.get("finish_reason")
    cached = headers.get("x-openrouter-cache-status", "").upper() == "HIT"
    facts: dict[str, Any] = {
        "usage": _counted(read_usage(usage or {}), value, choice), "cost": cost,
        "provider": _provider(value), "model": _text(value.get("model")), "finish_reason": _text(finish),
        "status": 200, "generation_id": headers.get("x-generation-id") or _text(value.get("id")),
        "cached_from": headers.get("x-openrouter-cache-source-id") if cached else None,
        "byok": (usage or {}).get("is_byok") is True, "tried": tried(value),
    }  # fmt: skip
    fault = (
        _error_fault(value, choice, cost, problem)
        or _finish_fault(finish, choice, message, cost)
        or _origin_fault(facts, expected, cost)
        or _quality_fault(message, facts["usage"], expected, cost)
    )
    return Reply(raw, None if fault else FINISHED[str(finish)], fault, **facts)


def _provider(value: Mapping[str, Any]) -> str | None:
    """Who answered: the reply's own word (in no schema, so it may be missing), else the router's metadata."""
    if isinstance(value.get("provider"), str):
        return value["provider"]
    router = value.get("openrouter_metadata")
    endpoints = router.get("endpoints") if isinstance(router, dict) else None
    available = endpoints.get("available") if isinstance(endpoints, dict) else None
    for entry in available if isinstance(available, list) else ():
        if isinstance(entry, dict) and entry.get("selected") is True:
            return _text(entry.get("provider"))
    return None


def _counted(usage: Usage, value: dict[str, Any], choice: dict[str, Any]) -> Usage:
    """`usage`, with the output tokens counted from the ids where the server named ids but no count."""
    ids = token_ids({**value, "choices": [choice]}).get("token_ids")
    return replace(usage, completion_tokens=len(ids)) if ids and not usage.completion_tokens else usage


def _error_fault(
    value: dict[str, Any], choice: dict[str, Any], cost: Decimal | None, problem: str | None
) -> Fault | None:
    error = value.get("error") or choice.get("error")
    if error:
        return inband_fault(error, billed=cost is not None)
    if problem:
        return Fault(Blame.GATEWAY, problem, maybe_billed=cost is None)
    if not choice:
        return Fault(Blame.GATEWAY, "no_choices", maybe_billed=cost is None)
    if choice.get("finish_reason") == "error":
        return Fault(Blame.GATEWAY, "provider_error", "finish_reason error", maybe_billed=cost is None)
    return None


def _finish_fault(finish: Any, choice: dict[str, Any], message: dict[str, Any], cost: Decimal | None) -> Fault | None:
    unbilled = cost is None
    if finish == "content_filter":
        return Fault(Blame.ROW, "moderated", "finish_reason content_filter", unbilled)
    if message.get("refusal"):
        return Fault(Blame.ROW, "refused", str(message["refusal"])[:200], unbilled)
    if finish is None and not has_substance(message):
        return Fault(Blame.GATEWAY, "empty_cold_start", "no content and no finish_reason", unbilled)
    if finish == "abort":  # SGLang and vLLM: the server gave up on it, at its end or by somebody's order
        return Fault(Blame.GATEWAY, "aborted", "finish_reason abort", unbilled)
    if finish not in FINISHED:
        return Fault(Blame.ROW, "finish_reason", f"finish_reason {finish!r}", unbilled)
    calls = message.get("tool_calls")
    if finish == "tool_calls" and not calls:
        return Fault(Blame.ROW, "tool_calls_missing", "finish_reason tool_calls without a tool call", unbilled)
    if finish != "length" and not (text_of(message.get("content")).strip() or calls):
        return Fault(Blame.ROW, "empty", f"finish_reason {finish}, no content, no tool call", unbilled)
    if not has_substance(message):  # cut while thinking is data, cut before the first word is not
        return Fault(Blame.ROW, "empty", f"finish_reason {finish}, nothing said", unbilled)
    return None


def _origin_fault(facts: Mapping[str, Any], expected: Expected, cost: Decimal | None) -> Fault | None:
    if expected.kind == "openai":  # one server that names itself as it likes
        return None
    provider, model, providers = facts["provider"], facts["model"], expected.providers
    if provider is not None and provider not in providers.names:
        return Fault(Blame.ROW, "wrong_provider", f"answered by {provider}, which the policy excludes", cost is None)
    if model is not None and model not in providers.served_models:
        return Fault(Blame.ROW, "wrong_model", f"answered by model {model}, asked {providers.model}", cost is None)
    return None


def _quality_fault(message: Mapping[str, Any], usage: Usage, expected: Expected, cost: Decimal | None) -> Fault | None:
    """Whole answers that are no data. A host that ignores the reasoning switch answers as another model would."""
    quality = expected.quality
    if quality is None:
        return None
    found = None
    if expected.kind == "openrouter" and expected.thinking is not None:
        shown = bool(reasoning_of(message).strip())
        if not expected.thinking and (shown or usage.reasoning_tokens):
            found = ("reasoned", f"{usage.reasoning_tokens} reasoning tokens, although reasoning is switched off")
        elif expected.thinking and not shown and quality.missing_reasoning:
            found = ("reasoning_missing", f"no reasoning text, {usage.reasoning_tokens} reasoning tokens")
    found = found or flaw(message, quality)
    return Fault(Blame.ROW, *found, maybe_billed=cost is None, tries=quality.tries) if found else None


def has_substance(message: Mapping[str, Any]) -> bool:
    """Whether a message holds anything that the target said: text that is not blank, reasoning or a tool call."""
    return bool(text_of(message.get("content")).strip() or message.get("tool_calls") or reasoning_of(message).strip())


def text_of(content: Any) -> str:
    """Message content as text; a list of parts is joined, null is empty."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning text under either of its names, else the texts in its details."""
    value = message.get("reasoning") or message.get("reasoning_content")
    if isinstance(value, str) and value:
        return value
    details = message.get("reasoning_details")
    texts = [detail.get("text") for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    return "".join(text for text in texts if isinstance(text, str))


def message_of(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant message of a choice; the text of a plain completion is its content."""
    if isinstance(choice.get("text"), str) and not choice.get("message"):
        return {"role": "assistant", "content": choice["text"]}
    return choice["message"] if isinstance(choice.get("message"), dict) else {}


def assistant_message(reply: Any) -> dict[str, Any]:
    """The assistant turn of a usable reply for the conversation's history: content, reasoning and tool calls verbatim.

    Content that is null stays null only beside a tool call, else it is ""; content in parts becomes their text. A
    target that thinks must find its thinking in the history of its tool calls, so reasoning that came as details
    alone is also given as text.
    """
    message = message_of(reply["choices"][0])
    kept = {key: message[key] for key in KEPT if message.get(key) is not None}
    if not isinstance(kept.get("content", ""), str):
        kept["content"] = text_of(kept["content"])
    if "content" not in kept:
        kept["content"] = None if kept.get("tool_calls") else ""
    if not (kept.get("reasoning") or kept.get("reasoning_content")) and (thought := reasoning_of(message)):
        kept["reasoning"] = thought
    return {"role": "assistant", **kept}


def token_ids(reply: Any) -> dict[str, list[int]]:
    """`prompt_token_ids` and `token_ids` when the server offered them, else nothing.

    vLLM writes prompt_token_ids beside `choices` and token_ids into the choice; SGLang writes prompt_token_ids and
    response_token_ids into the choice.
    """
    choice = reply["choices"][0]
    found = {}
    for name, spellings in (
        ("prompt_token_ids", ("prompt_token_ids",)),
        ("token_ids", ("token_ids", "response_token_ids")),
    ):
        for value in (place.get(spelling) for spelling in spellings for place in (choice, reply)):
            if isinstance(value, list) and value and all(type(item) is int for item in value):
                found[name] = value
                break
    return found


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Token counts of a reply; missing ones are 0."""

    def count(value: Any) -> int:
        return value if type(value) is int and value >= 0 else 0

    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return Usage(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(completion.get("reasoning_tokens")) if isinstance(completion, dict) else 0,
        count(prompt.get("cached_tokens")) if isinstance(prompt, dict) else 0,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
