"""Errors as data: whose fault, whether it may have been billed, how long to wait.

Follows OpenRouter's documented error table (docs: api_reference/errors-and-debugging). Before a provider starts,
the HTTP status is the error's code; afterwards the status is 200 and the error stands in the body, where 401, 402
and 403 speak of the provider's own account, not of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from eyrie.errors import ExitCode


class Blame(Enum):
    """Who must change for the request to succeed."""

    ROW = "row"  # this row; uses up one of its attempts
    PERMANENT = "permanent"  # this row, and no attempt will help
    OVERLOAD = "overload"  # all of us: send less, wait
    GATEWAY = "gateway"  # nobody here: try again
    RUN = "run"  # the user: the run stops


@dataclass(frozen=True)
class Fault:
    """Why a request gave no usable answer. `detail` is what the server said, shortened; it may hold the key's text
    and must be redacted before it is stored or shown."""

    blame: Blame
    reason: str  # a short word, used in counts
    detail: str = ""
    maybe_billed: bool = False  # no bill came, but one may exist
    retry_after: float | None = None  # seconds
    code: ExitCode = ExitCode.FAILED  # RUN: how the job ends
    tries: int | None = None  # ROW: the row is given up after so many attempts, where that is sooner


_BY_STATUS: dict[int, tuple[Blame, str]] = {
    400: (Blame.PERMANENT, "invalid_request"),
    408: (Blame.GATEWAY, "timeout"),
    412: (Blame.PERMANENT, "invalid_request"),
    413: (Blame.PERMANENT, "too_large"),
    422: (Blame.PERMANENT, "unprocessable"),
    429: (Blame.OVERLOAD, "rate_limited"),
    500: (Blame.GATEWAY, "server_error"),
    502: (Blame.GATEWAY, "provider_unavailable"),
    503: (Blame.OVERLOAD, "unavailable"),
    504: (Blame.GATEWAY, "timeout"),
    524: (Blame.GATEWAY, "timeout"),
    529: (Blame.OVERLOAD, "overloaded"),
}
_TIMEOUTS = (408, 504, 524)  # the provider may have gone on and billed
# `error.metadata.error_type`: stable where the status is not. Types that are not here follow the status.
_TYPES: dict[str, tuple[Blame, str]] = {
    "rate_limit_exceeded": (Blame.OVERLOAD, "rate_limited"),
    "provider_overloaded": (Blame.OVERLOAD, "overloaded"),
    "capacity_exhausted": (Blame.OVERLOAD, "overloaded"),
    "temporarily_unavailable": (Blame.OVERLOAD, "unavailable"),
    "provider_unavailable": (Blame.GATEWAY, "provider_unavailable"),
    "timeout": (Blame.GATEWAY, "timeout"),
    "server": (Blame.GATEWAY, "server_error"),
    "context_length_exceeded": (Blame.PERMANENT, "context_length"),
    "max_tokens_exceeded": (Blame.PERMANENT, "max_tokens"),
    "string_too_long": (Blame.PERMANENT, "too_large"),
    "payload_too_large": (Blame.PERMANENT, "too_large"),
    "invalid_request": (Blame.PERMANENT, "invalid_request"),
    "invalid_prompt": (Blame.PERMANENT, "invalid_request"),
    "precondition_failed": (Blame.PERMANENT, "invalid_request"),
    "unprocessable": (Blame.PERMANENT, "unprocessable"),
    "content_policy_violation": (Blame.PERMANENT, "moderated"),
    "refusal": (Blame.PERMANENT, "refused"),
}
_MONEY = ("payment_required", "token_limit_exceeded")  # the second: a cap on tokens that follows from the credits
_MAY_COME_BACK = ("capacity_exhausted", "temporarily_unavailable")
_ALWAYS_EXCLUDED = {"allowed_providers", "quantization"}  # what our own list and precisions leave out on purpose


def http_fault(status: int, headers: Mapping[str, str], raw: bytes) -> Fault:
    """The fault of a reply whose HTTP status is not 200."""
    error, text = _error_object(raw)
    wait = retry_after(headers, error)
    maybe = status in _TIMEOUTS
    if status == 401:
        return Fault(Blame.RUN, "key_refused", text, code=ExitCode.KEY_REFUSED)
    if status == 402 or _type_of(error) in _MONEY:
        return Fault(Blame.RUN, "credits_out", text, code=ExitCode.CREDITS_OUT)
    if not error:  # an HTML page or plain text from something in between
        blame, reason = _BY_STATUS.get(status, (Blame.GATEWAY, f"http_{status}"))
        if status == 403 or b"error code: 1015" in raw:  # Cloudflare thinks we are an attack
            blame, reason = Blame.OVERLOAD, "blocked_at_the_edge"
        elif blame is Blame.PERMANENT or status == 404:
            blame = Blame.ROW
        return Fault(blame, reason, text, maybe, wait)
    if status == 403:
        return _forbidden(error, text)
    if status == 404:
        return _no_endpoint(error, text, wait)
    if status in (400, 422) and "return_" in text and "token_ids" in text:  # true of every request, so no row's fault
        text += "; set gateway.ask_token_ids=false for this server"
        return Fault(Blame.RUN, "token_ids_refused", text, code=ExitCode.USAGE)
    blame, reason = _typed(error) or _BY_STATUS.get(status, (Blame.GATEWAY, f"http_{status}"))
    if status == 400 and "context length" in text.lower():  # SGLang and vLLM say it in words only
        reason = "context_length"
    return Fault(blame, reason, text, maybe or reason == "timeout", wait)


def _forbidden(error: dict[str, Any], text: str) -> Fault:
    """403: moderation and guardrails refuse this prompt, a limit of the key or the workspace refuses the run."""
    metadata = error.get("metadata") if isinstance(error.get("metadata"), dict) else {}
    if {"reasons", "flagged_input", "patterns"} & set(metadata or {}) or _type_of(error) == "content_policy_violation":
        return Fault(Blame.PERMANENT, "moderated", text)
    if any(word in text.lower() for word in ("limit", "budget", "credit")):
        return Fault(Blame.RUN, "credits_out", text, code=ExitCode.CREDITS_OUT)
    return Fault(Blame.PERMANENT, "forbidden", text)


def _no_endpoint(error: dict[str, Any], text: str, wait: float | None) -> Fault:
    """404: nobody serves this request under our constraints. They are never loosened: unless endpoints may come back
    by themselves, or only this row's length is in the way, the run stops."""
    given = error.get("availability")
    availability = given if isinstance(given, dict) else {}
    excluded = availability.get("excluded_by")
    reasons = {str(name) for name in excluded} if isinstance(excluded, list) else set()
    told = [str(availability["code"])] if availability.get("code") else []
    text = "; ".join([text, *told, *([f"excluded by {', '.join(sorted(reasons))}"] if reasons else [])])
    if availability.get("code") in _MAY_COME_BACK or availability.get("retryable") is True:
        return Fault(Blame.OVERLOAD, "unavailable", text, retry_after=wait)
    if reasons - _ALWAYS_EXCLUDED == {"context_length"}:
        return Fault(Blame.PERMANENT, "context_length", text)
    return Fault(Blame.RUN, "no_endpoint", text, code=ExitCode.POLICY_EMPTY)


def unreached(error: Exception, url: str) -> Fault:
    """The fault of a request that could not be sent (nothing listens at `url`): nothing is billed."""
    return Fault(Blame.GATEWAY, "server_not_up", f"{url} cannot be connected to ({str(error) or type(error).__name__})")


def inband_fault(error: Any, *, billed: bool) -> Fault:
    """The fault of an error inside a 200 reply (`billed`: the reply carries its cost).

    A provider had begun, so this is one provider's word: what would be final over HTTP may be different elsewhere,
    and uses up one of the row's attempts. Its 401, 402, 403 and 404 speak of its own account, not of ours.
    """
    value = error if isinstance(error, dict) else {"message": str(error)}
    code = _integer(value.get("code"))
    typed = _typed(value) or (None if code in (401, 402, 403, 404) else _BY_STATUS.get(code or 0))
    blame, reason = typed or (Blame.GATEWAY, "provider_error")
    if blame is Blame.PERMANENT:
        blame = Blame.ROW
    return Fault(blame, reason, describe(value), maybe_billed=not billed, retry_after=retry_after({}, value))


def tried(value: Any) -> tuple[tuple[str, int | None], ...]:
    """(provider name, status) of the endpoints that were tried in vain for this reply, as far as it tells: from the
    router's metadata, and from the error's own. Each provider once, with its last status."""
    found: dict[str, int | None] = {}
    whole = value if isinstance(value, dict) else {}
    error = whole.get("error") if isinstance(whole.get("error"), dict) else {}
    metadata = error.get("metadata") if isinstance(error.get("metadata"), dict) else {}
    router = whole.get("openrouter_metadata") if isinstance(whole.get("openrouter_metadata"), dict) else {}
    for entries in (router.get("attempts"), metadata.get("previous_errors")):
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("provider"), str):
                status = _integer(entry.get("status", entry.get("code")))
                if status != 200:
                    found[entry["provider"]] = status
    if isinstance(metadata.get("provider_name"), str):
        found[metadata["provider_name"]] = _integer(error.get("code"))
    return tuple(found.items())


def _type_of(error: dict[str, Any]) -> str | None:
    """The error's type, where this server puts it."""
    metadata, availability = error.get("metadata"), error.get("availability")
    names = [
        metadata.get("error_type") if isinstance(metadata, dict) else None,
        availability.get("code") if isinstance(availability, dict) else None,
        error.get("type"), error.get("code"),
    ]  # fmt: skip
    known = (name for name in names if isinstance(name, str) and (name in _TYPES or name in _MONEY))
    return next(known, None)


def _typed(error: dict[str, Any]) -> tuple[Blame, str] | None:
    return _TYPES.get(_type_of(error) or "")


def _error_object(raw: bytes) -> tuple[dict[str, Any], str]:
    """The error in a body and its text; an empty object when the body is no error envelope."""
    try:
        value = json.loads(raw)
    except (ValueError, UnicodeDecodeError):
        return {}, " ".join(raw[:200].decode("utf-8", "replace").split())
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict) and isinstance(value, dict) and isinstance(value.get("message"), str):
        error = value  # SGLang and vLLM put the error at the top
    return (error, describe(error)) if isinstance(error, dict) else ({}, raw[:200].decode("utf-8", "replace"))


def describe(error: dict[str, Any]) -> str:
    """What the server said, with the provider's own words (`metadata.raw`), at most 300 characters."""
    parts = [str(error.get("message") or "no message")]
    metadata = error.get("metadata")
    if isinstance(metadata, dict):
        parts += [str(metadata[key]) for key in ("provider_name", "raw") if metadata.get(key)]
    return " ".join(": ".join(parts).split())[:300]


def retry_after(headers: Mapping[str, str], error: dict[str, Any]) -> float | None:
    """Seconds to wait that the server asked for, in a header or in the error; at most an hour."""
    metadata = error.get("metadata") if isinstance(error.get("metadata"), dict) else {}
    for value in (headers.get("retry-after"), error.get("retry_after"), (metadata or {}).get("retry_after")):
        try:
            seconds = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if 0 <= seconds <= 3600:
            return seconds
    return None


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return None
