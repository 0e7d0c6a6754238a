"""Streamed answers: `data:` lines with keep-alive comments between, usage in the last chunk, then `[DONE]`.

Faults of its own: `midstream` (an error chunk after half the text), `midstream_bare` (the same with empty choices),
`no_done` (the end never comes). Of an answer whose client went away, endpoints with `aborts_stop_billing` bill what
was sent; the others go on to the end, bill all of it, and the response cache keeps it.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.gateway_double import catalogue
from tests.gateway_double.answers import digest
from tests.gateway_double.books import Books
from tests.gateway_double.faults import Outcome, encode, late

if TYPE_CHECKING:
    from tests.gateway_double.server import Connection

LOST = ("no_done", "cut", "drop")  # the answer is whole, its way to the client is not
BROKEN = ("midstream", "midstream_bare")


def line(value: dict[str, Any]) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def pieces(reply: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The deltas of a whole reply; the text is cut into at most `count` pieces."""
    message = reply["choices"][0]["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.get("reasoning"):
        deltas.append({"reasoning": message["reasoning"], "reasoning_details": message.get("reasoning_details")})
    text = message.get("content") or ""
    step = max(1, -(-len(text) // max(count, 1)))
    deltas += [{"content": text[at : at + step]} for at in range(0, len(text), step)]
    if message.get("refusal"):
        deltas.append({"refusal": message["refusal"]})
    if message.get("tool_calls"):
        deltas.append({"tool_calls": [{**call, "index": i} for i, call in enumerate(message["tool_calls"])]})
    return deltas


async def stream(
    connection: Connection, books: Books, request: dict[str, Any], body: bytes, endpoint: dict[str, Any],
    reply: dict[str, Any], fault: str | None, wait: float, cost: Decimal, keep: bool,
) -> Outcome | None:  # fmt: skip
    """Send a reply chunk by chunk over `wait` seconds and bill it."""
    usage, generation_id = reply["usage"], reply["id"]
    lost = fault in LOST
    outcome = Outcome(200, encode(reply)) if lost else late(fault, json.loads(json.dumps(reply)))
    connection.start(outcome.status, {"Content-Type": "text/event-stream", "X-Generation-Id": generation_id}, None)
    said = json.loads(outcome.data or b"") if _has_message(outcome) else reply  # a fault may have changed who says it
    base = {k: said[k] for k in ("id", "created", "model", "provider")} | {"object": "chat.completion.chunk"}
    deltas = pieces(said, books.script["chunks"]) if _has_message(outcome) else []
    stops = endpoint["double"].get("aborts_stop_billing")
    sent = 0
    for delta in deltas:
        if not connection.gone:
            connection.chunk(b": OPENROUTER PROCESSING\n\n")
        await books.sleep(wait / max(len(deltas), 1))
        if (connection.gone and stops) or (fault in BROKEN and sent >= len(deltas) // 2):
            break
        choice = {"index": 0, "delta": delta, "finish_reason": None, "native_finish_reason": None}
        if not connection.gone and not (lost and sent >= len(deltas) // 2):
            connection.chunk(line({**base, "choices": [choice]}))
        sent += 1
    if fault in BROKEN:
        cost = Decimal(0)
    elif connection.gone and stops:
        share = Decimal(sent) / max(len(deltas), 1)
        cost = catalogue.cost(endpoint, usage["prompt_tokens"], int(usage["completion_tokens"] * share))
    books.abandoned += connection.gone
    books.bill(body, generation_id, cost, endpoint["tag"], endpoint["provider_name"], usage, fault or "answer",
               gone=connection.gone, streamed=True, seconds=wait)  # fmt: skip
    if keep and fault in (None, "slow", "long", *LOST) and sent == len(deltas) and outcome.data:
        books.cache.setdefault(digest(body), outcome.data)
    if connection.gone or lost:
        connection.transport.close()
        return None
    if fault in BROKEN:
        failed = {"code": 502, "message": "upstream died", "metadata": {"error_type": "provider_unavailable"}}
        ended = [] if fault == "midstream_bare" else [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]
        connection.chunk(line({**base, "error": failed, "choices": ended}))
    elif outcome.data:
        final = json.loads(outcome.data) if _has_message(outcome) else {}
        finish = final["choices"][0]["finish_reason"] if final else None
        end = {"index": 0, "delta": {"content": ""}, "finish_reason": finish, "native_finish_reason": finish}
        connection.chunk(line({**base, "choices": [end]}) if final else b"data: " + outcome.data + b"\n\n")
        if "usage" in final:
            connection.chunk(line({**base, "choices": [], "usage": final["usage"]}))
    connection.chunk(b"data: [DONE]\n\n")
    connection.transport.write(b"0\r\n\r\n")
    return None


def _has_message(outcome: Outcome) -> bool:
    try:
        value = json.loads(outcome.data or b"")
        return isinstance(value["choices"][0]["message"], dict)
    except (ValueError, LookupError, TypeError):
        return False
