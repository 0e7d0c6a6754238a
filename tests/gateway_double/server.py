"""The double's HTTP server. Run it as a process: `python -m tests.gateway_double.server`; it prints its port.

Besides OpenRouter's paths it has `POST /control` (change the script) and `GET /control` (ledger and
counters), and `DELETE /control` (begin anew).
Like the real one it bills a non-streaming request in full even when the client has gone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.parse
from decimal import Decimal
from typing import Any

from tests.gateway_double.answers import DEFAULT_SCRIPT, chance, completion, digest
from tests.gateway_double.catalogue import endpoints, listing

HTML = b"<html><body>Bad gateway</body></html>"
STATUS = {"400": 400, "413": 413, "429": 429, "500": 500, "502": 502, "503": 503, "504": 504, "524": 524, "529": 529}


class State:
    """Script, ledger, cache and counters."""

    def __init__(self) -> None:
        self.script = json.loads(json.dumps(DEFAULT_SCRIPT))
        self.ledger: list[dict[str, Any]] = []
        self.records: dict[str, dict[str, Any]] = {}
        self.cache: dict[str, bytes] = {}
        self.seen: dict[str, int] = {}
        self.faults: dict[str, int] = {}
        self.in_flight = self.peak = self.requests = self.hits = 0
        self.last_headers: dict[str, str] = {}
        self.last_body = ""

    @property
    def billed(self) -> Decimal:
        return sum((Decimal(entry["cost"]) for entry in self.ledger), Decimal(0))

    def bill(self, body: bytes, reply: dict[str, Any], cost: Decimal, provider: str) -> None:
        """Enter a request into the ledger and make it known to `/generation`."""
        usage = reply.get("usage") or {}
        self.ledger.append({"id": reply["id"], "digest": digest(body), "cost": format(cost, "f")})
        self.records[reply["id"]] = {
            "id": reply["id"], "total_cost": float(cost), "provider_name": provider,
            "native_tokens_prompt": usage.get("prompt_tokens", 0),
            "native_tokens_completion": usage.get("completion_tokens", 0),
            "native_tokens_reasoning": 0, "native_tokens_cached": 0,
        }  # fmt: skip

    def choose_fault(self, body: bytes) -> str | None:
        """The fault that this request meets: by plan, else by rate; fixed by the body and how often it came."""
        nth = self.seen[digest(body)] = self.seen.get(digest(body), 0) + 1
        text = body.decode()
        for step in self.script["plan"]:
            if step["times"] > 0 and step["match"] in text:
                step["times"] -= 1
                return step["fault"]
        point, edge = chance(body, nth, "fault"), 0.0
        for name, rate in sorted(self.script["rates"].items()):
            edge += rate
            if point < edge:
                return name
        return None


STATE = State()


def error(code: int, message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, **more}}).encode()


async def chat(state: State, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes | None]:
    """(status, headers, body) of a chat completion; body None = hang up without a word."""
    script, request = state.script, json.loads(body)
    key = headers.get("authorization", "").removeprefix("Bearer ")
    state.requests += 1
    state.last_headers, state.last_body = headers, body.decode()
    if script["keys"] is not None and key not in script["keys"]:
        return 401, {}, error(401, f"No auth credentials found for {key}")
    fault = state.choose_fault(body)
    if fault:
        state.faults[fault] = state.faults.get(fault, 0) + 1
    wait = script["latency"][0] + chance(body, 0, "latency") * (script["latency"][1] - script["latency"][0])
    wanted_cache = script["cache"] and headers.get("x-openrouter-cache") == "true"
    if wanted_cache and digest(body) in state.cache and fault is None:
        return hit(state, body)
    if script["credits"] is not None:
        ahead = request.get("max_tokens", 0) * Decimal(script["completion_price"])
        if state.billed + ahead > Decimal(str(script["credits"])):
            return 402, {}, error(402, "This request requires more credits, or fewer max_tokens.")
    early = refuse(fault, script)
    if early is not None:
        return early
    await asyncio.sleep(wait + (script.get("slow", 1.0) if fault == "slow" else 0))
    return finish(state, request, body, fault, wanted_cache)


def hit(state: State, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """The response cache's copy: free, usage zeroed, an id of its own."""
    state.hits += 1
    reply = json.loads(state.cache[digest(body)])
    source, own = reply["id"], "gen-hit-" + digest(body)[:16]
    reply |= {"id": own, "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}}
    cache = {"X-OpenRouter-Cache-Status": "HIT", "X-OpenRouter-Cache-Source-Id": source}
    return 200, {"X-Generation-Id": own, **cache}, json.dumps(reply).encode()


def refuse(fault: str | None, script: dict[str, Any]) -> tuple[int, dict[str, str], bytes] | None:
    """Faults before any provider started: nothing is billed."""
    if fault in STATUS:
        retry = {"Retry-After": str(script["retry_after"])} if fault in ("429", "503") else {}
        return STATUS[fault], retry, error(STATUS[fault], f"scripted {fault}", metadata={"raw": "upstream words"})
    if fault == "html":
        return 502, {"Content-Type": "text/html"}, HTML
    if fault == "403_moderated":
        return 403, {}, error(403, "Input was flagged", metadata={"reasons": ["violence"], "flagged_input": "..."})
    if fault == "403_limit":
        return 403, {}, error(403, "Key limit exceeded (total limit)")
    if fault == "404":
        return 404, {}, error(404, "No endpoints found", availability={"code": "constraint_filtered"})
    if fault == "401":
        return 401, {}, error(401, "User not found.")
    return None


def finish(
    state: State, request: dict[str, Any], body: bytes, fault: str | None, cache: bool
) -> tuple[int, dict[str, str], bytes | None]:
    """Faults after a provider answered, and answers. What the provider did is billed."""
    reply = completion(request, body, state.script)
    whole = fault in (None, "slow", "cut", "drop", "no_usage")
    if not whole:  # a generation that failed is another one than the answer's
        reply["id"] += f"-{fault}-{state.seen[digest(body)]}"
    generation = {"X-Generation-Id": reply["id"]}
    choice, cost = reply["choices"][0], Decimal(str(reply["usage"]["cost"]))
    provider = reply["provider"]
    if fault in ("inband", "inband_429", "inband_text"):
        code = {"inband": 502, "inband_429": 429, "inband_text": "server_error"}[fault]
        state.bill(body, {**reply, "usage": {}}, Decimal(0), provider)
        return 200, generation, error(code, "Provider returned error", metadata={"provider_name": provider})  # type: ignore[arg-type]
    if fault == "inband_partial":  # partial content, refunded
        state.bill(body, {**reply, "usage": {}}, Decimal(0), provider)
        choice |= {"finish_reason": "error", "error": {"code": 502, "message": "upstream died"}}
        del reply["usage"]
    elif fault == "empty":
        state.bill(body, {**reply, "usage": {}}, Decimal(0), provider)
        return 200, generation, b""
    elif fault == "html200":
        state.bill(body, {**reply, "usage": {}}, Decimal(0), provider)
        return 200, generation, HTML
    elif fault == "blank":
        choice["message"] = {"role": "assistant", "content": None}
    elif fault == "content_filter":
        choice["finish_reason"] = "content_filter"
    elif fault == "wrong_provider":
        reply["provider"] = "Gamma"
    elif fault == "wrong_model":
        reply["model"] = "maker/other"
    elif fault == "odd_finish":
        choice["finish_reason"] = "weird"
    if fault != "inband_partial":
        state.bill(body, reply, cost, provider)
    if fault == "no_usage":
        del reply["usage"]
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if b"\xed" in data:  # a lone surrogate can only travel escaped
        data = json.dumps(reply).encode()
    if whole and cache and fault != "no_usage":
        state.cache[digest(body)] = data
    if fault == "drop":
        return 0, {}, None
    return 200, {**generation, **({"X-Cut": "1"} if fault == "cut" else {})}, data


def other(state: State, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    """Everything but chat completions."""
    url = urllib.parse.urlsplit(target)
    path = url.path.removeprefix("/api/v1")
    query = urllib.parse.parse_qs(url.query)
    if path == "/control" and method == "DELETE":
        state.__init__()  # type: ignore[misc]
        return 200, b"{}"
    if path == "/control" and method == "POST":
        state.script.update(json.loads(body))
        return 200, b"{}"
    if path == "/control":
        return 200, json.dumps(
            {"ledger": state.ledger, "billed": format(state.billed, "f"), "peak": state.peak, "hits": state.hits,
             "requests": state.requests, "faults": state.faults, "headers": state.last_headers,
             "body": state.last_body}
        ).encode()  # fmt: skip
    if path == "/models":
        return 200, json.dumps(listing(state.script, query)).encode()
    if path == f"/models/{state.script['model']}/endpoints":
        return 200, json.dumps(endpoints(state.script)).encode()
    if path == "/key":
        return 200, json.dumps({"data": {"label": "masked", "limit": None, "usage": float(state.billed)}}).encode()
    if path == "/generation":
        record = state.records.get(query.get("id", [""])[0])
        return (200, json.dumps({"data": record}).encode()) if record else (404, error(404, "not found"))
    return 404, error(404, "no such path")


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """HTTP/1.1 with keep-alive, Content-Length only."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *rest = head.decode("latin-1").split("\r\n")
            method, target, _ = line.split(" ", 2)
            headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in rest if h)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            more: dict[str, str] = {}
            data: bytes | None
            if target.endswith("/chat/completions"):
                STATE.in_flight += 1
                STATE.peak = max(STATE.peak, STATE.in_flight)
                try:
                    status, more, data = await chat(STATE, headers, body)
                finally:
                    STATE.in_flight -= 1
            else:
                status, data = other(STATE, method, target, headers, body)
            if data is None:
                break
            cut = more.pop("X-Cut", None)
            fields = {"Content-Type": "application/json", **more, "Content-Length": str(len(data))}
            text = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items()) + "\r\n"
            writer.write(text.encode() + (data[: len(data) // 2] if cut else data))
            await writer.drain()
            if cut:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # the client has gone
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(
        serve_connection, "127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # ends with its parent


if __name__ == "__main__":
    asyncio.run(main())
