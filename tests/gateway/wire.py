"""A server that puts scripted bytes on the wire: for what no well-behaved double would send."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any


@dataclass
class Response:
    """`steps`: bytes to send and seconds to wait, in turn. `ends` false: the connection is reset instead."""

    steps: Sequence[bytes | float] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    ends: bool = True


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Wire:
    """Serves in threads of this process. `handle` makes a response of each request; `requests` are the POSTs."""

    def __init__(self, handle: Callable[[Request], Response]) -> None:
        self.requests: list[Request] = []
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    while outer._one(self.rfile, self.wfile, self.request, handle):
                        pass
                except OSError:
                    return  # the client has gone

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address, request_queue_size = True, True, 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _one(self, rfile: Any, wfile: Any, connection: Any, handle: Callable[[Request], Response]) -> bool:
        line = rfile.readline().decode()
        if not line:
            return False
        headers = {}
        while (field_line := rfile.readline().decode().strip()) != "":
            name, _, value = field_line.partition(":")
            headers[name.lower()] = value.strip()
        method, path, _ = line.split(" ", 2)
        request = Request(path, headers, rfile.read(int(headers.get("content-length", 0))))
        if method == "POST":
            self.requests.append(request)
        response = handle(request)
        size = sum(len(step) for step in response.steps if isinstance(step, bytes))
        framing = {"Transfer-Encoding": "chunked"} if response.chunked else {"Content-Length": str(size)}
        fields = {"Content-Type": "application/json", **response.headers, **framing}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        wfile.write(f"HTTP/1.1 {response.status} X\r\n{head}\r\n".encode())
        for step in response.steps:
            if isinstance(step, float):
                time.sleep(step)
            elif step:
                wfile.write(f"{len(step):x}\r\n".encode() + step + b"\r\n" if response.chunked else step)
        if not response.ends:
            connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if response.chunked:
            wfile.write(b"0\r\n\r\n")
        return True


def plain(value: Any, status: int = 200, **headers: str) -> Response:
    """A response that is one JSON value (or given bytes)."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Response([data], status, {name.replace("_", "-"): text for name, text in headers.items()})


def events(chunks: Iterable[Any], *, done: bool = True, ends: bool = True, **headers: str) -> Response:
    """A stream: JSON values become events, bytes go out as they are, floats are pauses."""
    steps: list[bytes | float] = []
    for chunk in chunks:
        if isinstance(chunk, bytes | float):
            steps.append(chunk)
        else:
            steps.append(b"data: " + json.dumps(chunk, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n")
    if done:
        steps.append(b"data: [DONE]\n\n")
    kind = {"Content-Type": "text/event-stream", "X-Generation-Id": "gen-1"}
    return Response(steps, 200, {**kind, **headers}, chunked=True, ends=ends)


def reply(message: dict[str, Any] | None = None, finish: str | None = "stop", **top: Any) -> dict[str, Any]:
    """A whole chat completion from provider Alpha."""
    choice = {"index": 0, "finish_reason": finish, "native_finish_reason": finish,
              "message": {"role": "assistant", **({"content": "hi"} if message is None else message)}}  # fmt: skip
    return {
        "id": "gen-1", "object": "chat.completion", "created": 7, "model": "maker/target", "provider": "Alpha",
        "choices": [choice], "usage": USAGE, **top,
    }  # fmt: skip


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "cost": 0.0001}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **top: Any) -> dict[str, Any]:
    """One chunk of the same; no delta = empty choices."""
    base = {"id": "gen-1", "object": "chat.completion.chunk", "created": 7, "model": "maker/target",
            "provider": "Alpha"}  # fmt: skip
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "native_finish_reason": finish, "logprobs": None}
    return {**base, "choices": [] if delta is None else [choice], **top}


def as_chunks(whole: dict[str, Any], size: int = 3) -> list[dict[str, Any]]:
    """The stream that a server sends instead of `whole`: text in pieces of `size`, usage last."""
    choice = whole["choices"][0]
    message = choice["message"]
    found = [chunk({"role": "assistant", "content": ""})]
    for name in ("reasoning", "reasoning_content", "content"):
        text = message.get(name) or ""
        for at in range(0, len(text), size):
            delta: dict[str, Any] = {name: text[at : at + size]}
            if name == "reasoning" and message.get("reasoning_details"):
                detail = {**message["reasoning_details"][0], "text": delta[name]}
                delta = {"content": "", "reasoning_details": [detail], **delta}
            found.append(chunk(delta))
    for index, call in enumerate(message.get("tool_calls") or ()):
        head = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        found.append(chunk({"tool_calls": [head]}))
        text = call["function"]["arguments"]
        for at in range(0, len(text), size):
            found.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": text[at : at + size]}}]}))
    found.append(chunk({"content": ""}, choice["finish_reason"]))
    return [*found, chunk(usage=whole["usage"])]
