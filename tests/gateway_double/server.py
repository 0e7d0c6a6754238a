"""The double's HTTP server. Run it as a process: `python -m tests.gateway_double.server [PORT]`; it prints its port.

Besides OpenRouter's paths it has `POST /control` (change the script), `GET /control` (ledger and counters; `?brief=1`
without the ledger) and `DELETE /control` (begin anew). Like the real one it bills a non-streaming request in full
even when the client has gone. One asyncio process carries thousands of connections: HTTP/1.1 with keep-alive, parsed
by hand, one request at a time on each.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import urllib.parse
from decimal import Decimal
from typing import Any

from tests.gateway_double import catalogue, sse
from tests.gateway_double.answers import chance, completion, digest, prompt_tokens
from tests.gateway_double.books import Books
from tests.gateway_double.faults import WHOLE, Outcome, early, error, late, refunded, short_of_credits

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 502: "Bad Gateway"}
BOOKS = Books()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self) -> None:
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None
        self.gone = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        BOOKS.connections += 1

    def connection_lost(self, _: Exception | None) -> None:
        self.gone = True
        BOOKS.connections -= 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.task is None:
            self.next_request()

    def next_request(self) -> None:
        """Serve the next whole request in the buffer, if there is one."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        line, *rest = self.buffer[:end].decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in rest)}
        size = end + 4 + int(headers.get("content-length", 0))
        if len(self.buffer) < size:
            return
        body, self.buffer = self.buffer[end + 4 : size], self.buffer[size:]
        method, target, _ = line.split(" ", 2)
        self.task = asyncio.get_running_loop().create_task(self.serve(method, target, headers, body))

    async def serve(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        try:
            if target.endswith("/chat/completions"):
                BOOKS.in_flight += 1
                BOOKS.peak = max(BOOKS.peak, BOOKS.in_flight)
                try:
                    await self.send(await chat(self, headers, body))
                finally:
                    BOOKS.in_flight -= 1
            else:
                await self.send(other(method, target, headers, body))
        finally:
            self.task = None
        if not self.gone:
            self.next_request()

    def start(self, status: int, headers: dict[str, str], size: int | None) -> None:
        """Write the head; `size` None announces chunks."""
        length = {"Transfer-Encoding": "chunked"} if size is None else {"Content-Length": str(size)}
        fields = {"Content-Type": "application/json", **headers, **length}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.transport.write(f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n{lines}\r\n".encode())
        BOOKS.statuses[status] += 1

    def chunk(self, data: bytes) -> None:
        self.transport.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def send(self, outcome: Outcome | None) -> None:
        """Put an outcome on the wire; None = it is there already."""
        if outcome is None:
            return
        if outcome.data is None:
            while outcome.manner == "hang" and not self.gone:
                await asyncio.sleep(0.02)
            self.transport.abort()
            return
        self.start(outcome.status, outcome.headers, len(outcome.data))
        if outcome.manner == "cut":
            self.transport.write(outcome.data[: len(outcome.data) // 2])
            self.transport.close()
        elif outcome.manner == "drip":
            step = max(1, len(outcome.data) // 20)
            for at in range(0, len(outcome.data), step):
                self.transport.write(outcome.data[at : at + step])
                await BOOKS.sleep(BOOKS.script["slow"] / 20)
        else:
            self.transport.write(outcome.data)


async def chat(connection: Connection, headers: dict[str, str], body: bytes) -> Outcome | None:
    """Answer one chat completion."""
    books, script = BOOKS, BOOKS.script
    key = headers.get("authorization", "").removeprefix("Bearer ")
    books.requests += 1
    books.last_headers, books.last_body = headers, body.decode()
    if script["keys"] is not None and key not in script["keys"]:
        return Outcome(401, error(401, f"No auth credentials found for {key}"))
    try:
        request = json.loads(body)
    except ValueError:
        return Outcome(400, error(400, "the body is no JSON"))
    fault = books.choose_fault(body)
    if fault:
        books.faults[fault] += 1
    keep = script["cache"] and headers.get("x-openrouter-cache") == "true"
    if keep and fault is None and (hit := books.cache.get(digest(body))) is not None:
        return cached(hit, body)
    refusal = early(fault, script) or preflight(request)
    if refusal is not None:
        return refusal
    endpoint = route(request, body)
    if isinstance(endpoint, Outcome):
        return endpoint
    books.busy[endpoint["tag"]] += 1
    try:
        return await generate(connection, request, body, endpoint, fault, keep)
    finally:
        books.busy[endpoint["tag"]] -= 1


def cached(data: bytes, body: bytes) -> Outcome:
    """The response cache's copy: free, usage zeroed, an id of its own."""
    BOOKS.hits += 1
    reply = json.loads(data)
    source, own = reply["id"], f"gen-hit-{digest(body)[:16]}-{BOOKS.hits}"
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}
    marks = {"X-OpenRouter-Cache-Status": "HIT", "X-OpenRouter-Cache-Source-Id": source, "X-Generation-Id": own}
    return Outcome(200, json.dumps({**reply, "id": own, "usage": usage}).encode(), marks)


def preflight(request: dict[str, Any]) -> Outcome | None:
    """402 when max_tokens of output at the highest price would pass what account or key have left."""
    if BOOKS.script["credits"] is None and BOOKS.script["key_limit"] is None:
        return None
    prompt = prompt_tokens(request)
    able, _ = catalogue.allowed(BOOKS.script, request, prompt)
    most = request.get("max_tokens") or 4096
    worst = max((catalogue.cost(item, prompt, most) for item in able), default=Decimal(0))
    source = BOOKS.affordable(worst)
    if source is None:
        return None
    left = Decimal(str(BOOKS.script["credits" if source == "account" else "key_limit"])) - BOOKS.billed
    return short_of_credits(most, int(max(left, Decimal(0)) * most / worst) if worst else 0, source)


def route(request: dict[str, Any], body: bytes) -> dict[str, Any] | Outcome:
    """The endpoint that answers: by price, the next one where one is full; 404 and 429 as OpenRouter says them."""
    seed = json.dumps(request.get("messages")).encode()
    able, excluded = catalogue.allowed(BOOKS.script, request, prompt_tokens(request))
    if not able:
        availability = {"code": "constraint_filtered", "excluded_by": excluded, "retryable": False}
        return Outcome(404, error(404, "No endpoints found matching your constraints", availability=availability))
    ordered = catalogue.preference(able, seed, (request.get("provider") or {}).get("sort"))
    for endpoint in ordered:
        if BOOKS.busy[endpoint["tag"]] < endpoint["double"].get("concurrency", 1 << 30):
            return endpoint
    tried = [{"provider": item["provider_name"], "code": 429, "status": 429} for item in ordered]
    metadata = {"error_type": "rate_limit_exceeded", "previous_errors": tried, "raw": "capacity_exhausted"}
    wait = BOOKS.script["retry_after"]
    data = error(429, "Provider returned error", metadata=metadata, retry_after=wait)
    return Outcome(429, data, {"Retry-After": str(wait)})


async def generate(
    connection: Connection,
    request: dict[str, Any],
    body: bytes,
    endpoint: dict[str, Any],
    fault: str | None,
    keep: bool,
) -> Outcome | None:
    """Let the endpoint work for as long as it takes, bill it, and say what goes out."""
    books, script = BOOKS, BOOKS.script
    whole = fault in WHOLE
    generation_id = books.generation_id(body, whole, fault)
    reply = completion(request, script, endpoint, generation_id, long=fault == "long")
    usage = reply["usage"]
    cost = refunded(fault, catalogue.cost(endpoint, usage["prompt_tokens"], usage["completion_tokens"]))
    usage["cost"] = float(cost)
    wait = duration(endpoint, usage["completion_tokens"], body) + (script["slow"] if fault == "slow" else 0)
    headers = {"X-Generation-Id": generation_id}
    if fault == "gone":
        connection.transport.abort()
    if headers_wanted := script["early_headers"] and whole and fault not in ("cut", "drop", "drip", "gone"):
        connection.start(200, headers, None)
    if request.get("stream"):
        return await sse.stream(connection, books, request, body, endpoint, reply, fault, wait, cost, keep)
    while script["hold"]:
        await asyncio.sleep(0.05)
    await books.sleep(wait)
    books.abandoned += connection.gone
    books.bill(body, generation_id, cost, endpoint["tag"], endpoint["provider_name"], dict(usage), fault or "answer",
               gone=connection.gone, streamed=False, seconds=wait)  # fmt: skip
    outcome = late(fault, reply)
    if fault in ("echo", "echo_answer") and outcome.data is not None:
        sent = books.last_headers.get("authorization", "").removeprefix("Bearer ")
        outcome.data = outcome.data.replace(b"{key}", sent.encode())
    if keep and whole and fault not in ("evict", "no_usage", "string_usage"):
        books.cache.setdefault(digest(body), outcome.data if outcome.data is not None else json.dumps(reply).encode())
    if headers_wanted:
        connection.chunk(b"\n" + (outcome.data or b""))
        connection.transport.write(b"0\r\n\r\n")
        return None
    outcome.headers.update(headers if outcome.data is not None else {})
    return outcome


def duration(endpoint: dict[str, Any], tokens: int, body: bytes) -> float:
    """Seconds that an answer takes: the endpoint's own speed, or the script's latency."""
    speed = endpoint["double"].get("tokens_per_s")
    if speed:
        return endpoint["double"].get("first_token_s", 0.0) + tokens / (speed * (0.8 + 0.4 * chance(body, 0, "speed")))
    low, high = BOOKS.script["latency"]
    return low + chance(body, 0, "latency") * (high - low)


def other(method: str, target: str, headers: dict[str, str], body: bytes) -> Outcome:
    """Everything but chat completions."""
    url = urllib.parse.urlsplit(target)
    path = url.path.removeprefix("/api/v1")
    query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
    script = BOOKS.script
    if path == "/control":
        if method == "DELETE":
            BOOKS.__init__()  # type: ignore[misc]
        elif method == "POST":
            script.update(json.loads(body))
        else:
            return Outcome(200, json.dumps(BOOKS.facts(brief="brief" in query)).encode())
        return Outcome(200, b"{}")
    BOOKS.paths[path] += 1
    if path == "/models":
        return Outcome(200, json.dumps(catalogue.listing(script, query)).encode())
    if path == f"/models/{script['model']}/endpoints":
        return Outcome(200, json.dumps(catalogue.endpoints(script)).encode())
    if path in ("/key", "/generation", "/credits"):
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if script["keys"] is not None and key not in script["keys"]:
            return Outcome(401, error(401, f"No auth credentials found for {key}"))
    if path == "/key":
        return Outcome(200, json.dumps({"data": BOOKS.key_data()}).encode())
    if path == "/credits":
        return Outcome(403, error(403, "Only management keys can fetch credits"))
    if path == "/generation" and (record := BOOKS.record(query.get("id", ""))) is not None:
        return Outcome(200, json.dumps({"data": record}).encode())
    return Outcome(404, error(404, "not found"))


async def main() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536, hard))
    gc.freeze()
    loop = asyncio.get_running_loop()
    port = int(sys.argv[1]) if sys.argv[1:] else 0
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # ends with its parent


if __name__ == "__main__":
    asyncio.run(main())
