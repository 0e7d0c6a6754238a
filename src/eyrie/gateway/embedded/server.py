"""The HTTP server: h11 on trio, one task per connection, and a watch on each client that waits for an answer."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import h11
import trio

from eyrie.gateway.embedded import protocol
from eyrie.gateway.embedded.protocol import ChatRequest, ProtocolError
from eyrie.gateway.embedded.service import Service
from eyrie.gateway.embedded.text import AnswerText

BODY_LIMIT = 8 << 20  # bytes of one request
KEPT_GENERATIONS = 8192  # answers that /generation remembers
READ = 1 << 16


class _Gone(Exception):
    """The client closed its connection."""


class Server:
    """Routes requests to the service. `catalogue_only` refuses completions, so the model is never loaded."""

    def __init__(self, service: Service, *, catalogue_only: bool = False) -> None:
        self.service, self.catalogue_only = service, catalogue_only
        self.served = service.served
        self.started = int(time.time())
        self.generations: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def run(self, port: int, task_status: trio.TaskStatus[int]) -> None:
        """Serve on loopback until cancelled; reports the port (0 = any free one)."""
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1", backlog=1024)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._connection, listeners)

    async def _connection(self, stream: trio.SocketStream) -> None:
        client = _Client(stream)
        async with stream:
            try:
                while await client.serve_one(self._respond):
                    pass
            except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
                return

    async def _respond(self, client: _Client, request: h11.Request, body: bytes) -> None:
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        try:
            if path == "/api/v1/chat/completions":
                await self._chat(client, request, body)
            elif request.method not in (b"GET", b"HEAD"):
                raise ProtocolError(405, f"{path} is read with GET", "invalid_request")
            else:
                await client.reply(200, self._read(path, query))
        except ProtocolError as error:
            if client.started:
                raise _Gone from None
            await client.reply(error.status, error.body())
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            raise _Gone from None
        except Exception:  # a defect here must cost one request, not the server
            traceback.print_exc()
            if client.started:
                raise _Gone from None
            await client.reply(500, ProtocolError(500, "defect in the embedded server; see its log", "server").body())

    def _read(self, path: str, query: str) -> dict[str, Any]:
        if path == "/api/v1/models":
            return protocol.models(self.served, self.started)
        if path == f"/api/v1/models/{self.served.model}/endpoints":
            return protocol.endpoints(self.served, self.started)
        if path == "/api/v1/key":
            return protocol.key()
        if path == "/api/v1/generation":
            wanted = dict(part.partition("=")[::2] for part in query.split("&")).get("id", "")
            if wanted in self.generations:
                return self.generations[wanted]
            raise ProtocolError(404, f"no generation {wanted!r} here", "not_found")
        raise ProtocolError(404, f"no such path: {path}", "not_found")

    async def _chat(self, client: _Client, http: h11.Request, body: bytes) -> None:
        if http.method != b"POST":
            raise ProtocolError(405, "chat completions are made with POST", "invalid_request")
        if self.catalogue_only:
            raise ProtocolError(503, "this server shows the catalogue only", "provider_unavailable")
        request = protocol.parse_request(body, self.served)
        created, began = int(time.time()), time.monotonic()
        loaded, job = await self.service.answer(request)
        text = AnswerText(loaded.decode, loaded.end_ids, request.stop)
        respond = self._stream if request.stream else self._whole
        await client.unless_gone(partial(respond, client, request, created, job, text))
        finish, seconds = job.finish_reason or "", time.monotonic() - began
        self.generations[request.generation_id] = protocol.generation(
            self.served, request, datetime.fromtimestamp(created, UTC).isoformat(), len(job.prompt), len(job.ids),
            finish, seconds,
        )  # fmt: skip
        if len(self.generations) > KEPT_GENERATIONS:
            self.generations.popitem(last=False)

    async def _whole(self, client: _Client, request: ChatRequest, created: int, job: Any, text: AnswerText) -> None:
        async with aclosing(self.service.progress(job)) as steps:
            async for _ in steps:
                pass
        reply = protocol.completion(
            self.served, request, created, job.prompt, job.ids, text.whole(job.ids), job.finish_reason
        )
        await client.reply(200, reply, [("X-Generation-Id", request.generation_id)])

    async def _stream(self, client: _Client, request: ChatRequest, created: int, job: Any, text: AnswerText) -> None:
        """Server-sent events: deltas, a last delta with the finish reason, usage with empty choices, [DONE]."""
        await client.start_events(request.generation_id)
        base = protocol.envelope(self.served, request.generation_id, "chat.completion.chunk", created)
        sent = 0
        try:
            async with aclosing(self.service.progress(job)) as steps:
                async for ids, finish in steps:
                    delta: dict[str, Any] = {"content": text.more(ids, finish is not None)}
                    choice = {"index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": finish}
                    chunk = {**base, "choices": [choice]}
                    if sent == 0:
                        delta["role"] = "assistant"
                    if request.return_token_ids:
                        choice["token_ids"] = ids[sent:]
                        if sent == 0:
                            chunk["prompt_token_ids"] = list(job.prompt)
                    sent = len(ids)
                    await client.send_event(protocol.encode(chunk))
        except ProtocolError as error:  # HTTP 200 is already out: the error travels in the last chunk
            choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
            await client.send_event(protocol.encode({**base, **error.body(), "choices": [choice]}))
        else:
            last = {**base, "choices": [], "usage": protocol.usage(len(job.prompt), len(job.ids))}
            await client.send_event(protocol.encode(last))
        await client.send_event(b"[DONE]")
        await client.end()


class _Client:
    """One connection: requests are read and answered in order, keep-alive as HTTP/1.1 has it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.SERVER)
        self.started = False  # whether this response's head is out

    async def serve_one(self, respond: Callable[..., Any]) -> bool:
        """Read one request and answer it; False when the connection is over."""
        self.started = False
        try:
            request = await self._event()
            if not isinstance(request, h11.Request):
                return False
            body = bytearray()
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
                if len(body) > BODY_LIMIT:
                    error = ProtocolError(413, f"the body exceeds {BODY_LIMIT} bytes", "payload_too_large")
                    await self.reply(413, error.body(), [("Connection", "close")])
                    return False
        except h11.RemoteProtocolError as error:
            if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                refused = ProtocolError(error.error_status_hint, f"not HTTP: {error}", "invalid_request")
                await self.reply(refused.status, refused.body(), [("Connection", "close")])
            return False
        await respond(self, request, bytes(body))
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True

    async def _event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.stream.receive_some(READ))
        return event

    async def _send(self, event: Any) -> None:
        if data := self.http.send(event):
            await self.stream.send_all(data)

    async def reply(self, status: int, value: Any, headers: list[tuple[str, str]] | None = None) -> None:
        """A whole JSON response."""
        data = protocol.encode(value)
        base = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        self.started = True
        head = self.http.send(h11.Response(status_code=status, headers=[*base, *(headers or [])])) or b""
        body = self.http.send(h11.Data(data=data)) or b""
        await self.stream.send_all(head + body + (self.http.send(h11.EndOfMessage()) or b""))

    async def start_events(self, generation_id: str) -> None:
        """The head of a stream of server-sent events."""
        headers = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")]
        self.started = True
        await self._send(h11.Response(status_code=200, headers=[*headers, ("X-Generation-Id", generation_id)]))

    async def send_event(self, data: bytes) -> None:
        await self._send(h11.Data(data=b"data: " + data + b"\n\n"))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def unless_gone(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`; cancel it and raise _Gone as soon as the client closes the connection."""
        gone, failure = False, None

        async def watch() -> None:
            nonlocal gone
            with contextlib.suppress(trio.BrokenResourceError):
                while data := await self.stream.receive_some(READ):
                    self.http.receive_data(data)  # the next request, early; it waits its turn
            gone = True
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await work()
            except (ProtocolError, trio.BrokenResourceError, h11.LocalProtocolError) as error:
                failure = error  # raised outside, where no exception group wraps it
            nursery.cancel_scope.cancel()
        if failure:
            raise failure
        if gone:
            raise _Gone
