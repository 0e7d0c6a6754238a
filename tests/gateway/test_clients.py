"""Connections over real sockets: one write a request, keep-alive, what idle connections do, limits of the machine."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable

import httpx
import pytest
import trio

from eyrie.errors import MissingError
from eyrie.gateway.clients import KEEPALIVE_S, Clients, allow_open_files, proxy_of
from eyrie.gateway.key import ApiKey

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
KEY = "sk-" + "or-v1-" + "0123456789abcdef"


class Server:
    """A loopback server that keeps what arrives, one entry per read. `idle_s`: closes connections that idle so long."""

    def __init__(self, idle_s: float = 60.0, *, closes: bool = False) -> None:
        self.idle_s, self.closes = idle_s, closes
        self.reads: list[bytes] = []
        self.connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            while True:
                seen = b""
                while b"\r\n\r\n" not in seen or len(seen) < _length(seen):
                    data = b""
                    with trio.move_on_after(self.idle_s):
                        data = await stream.receive_some(65536)
                    if not data:
                        return
                    self.reads.append(data)
                    seen += data
                await stream.send_all(REPLY)
                if self.closes:  # without saying so before
                    return


def _length(seen: bytes) -> int:
    head, _, _ = seen.partition(b"\r\n\r\n")
    found = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(head) + 4 + (int(found[0].split(b":")[1]) if found else 0)


def with_server(server: Server, use: Callable[[str], Awaitable[None]]) -> None:
    async def main() -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, server.serve, listeners)
            with trio.fail_after(30):
                await use(f"http://127.0.0.1:{port}/v1")
            nursery.cancel_scope.cancel()

    trio.run(main)


async def ask(clients: Clients, slot: int = 0, content: bytes = b'{"a": 1}') -> httpx.Response:
    async with clients.of(slot).stream("POST", f"{clients.url}/chat/completions", content=content) as response:
        await response.aread()
        return response


def test_a_request_travels_in_one_piece_with_the_key_in_one_header() -> None:
    server = Server()

    async def use(url: str) -> None:
        async with Clients(url, ApiKey(KEY), 4, 5.0) as clients:
            assert (await ask(clients)).json() == {}

    with_server(server, use)
    assert len(server.reads) == 1
    head, _, body = server.reads[0].partition(b"\r\n\r\n")
    assert body == b'{"a": 1}' and head.count(KEY.encode()) == 1
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")


def test_connections_are_kept_and_slots_of_one_client_share_them() -> None:
    server = Server()

    async def use(url: str) -> None:
        async with Clients(url, ApiKey(""), 2, 5.0) as clients:
            for slot in (0, 1, 0, 1, 2, 3):
                await ask(clients, slot)

    with_server(server, use)
    assert server.connections == 2


def test_idle_connections_are_dropped_before_the_server_drops_them() -> None:
    """Else a request may meet the closing: it fails, and nobody can tell whether it is billed."""
    server = Server(idle_s=0.5)

    async def use(url: str) -> None:
        async with Clients(url, ApiKey(""), 4, 5.0, keepalive_s=0.3) as clients:
            for pause in (0.0, 0.1, 0.4, 0.6, 0.2, 0.45):
                await trio.sleep(pause)
                assert (await ask(clients)).status_code == 200

    with_server(server, use)
    assert server.connections == 4
    assert KEEPALIVE_S < 5  # uvicorn, under SGLang and vLLM, closes after 5 s


def test_a_server_that_hangs_up_after_each_answer_costs_no_fault() -> None:
    server = Server(closes=True)

    async def use(url: str) -> None:
        async with Clients(url, ApiKey(""), 4, 5.0) as clients:
            for _ in range(5):
                assert (await ask(clients)).status_code == 200
                await trio.sleep(0.02)

    with_server(server, use)
    assert server.connections == 5


def test_silence_ends_a_request_and_nobody_listening_is_told_apart() -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep(30)

    async def main() -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, silent, listeners)
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
            async with Clients(url, ApiKey(""), 4, 0.2) as clients:
                with pytest.raises(httpx.ReadTimeout):
                    await ask(clients)
            nursery.cancel_scope.cancel()
        async with Clients("http://127.0.0.1:9/v1", ApiKey(""), 4, 5.0) as clients:
            with pytest.raises(httpx.ConnectError):
                await ask(clients)

    trio.run(main)


def test_a_large_body_and_a_server_that_answers_before_reading_it_all() -> None:
    async def impatient(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        await stream.send_all(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await stream.send_eof()
        while await stream.receive_some(1 << 20):
            pass

    async def main() -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, impatient, listeners)
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
            async with Clients(url, ApiKey(""), 4, 5.0) as clients:
                assert (await ask(clients, content=b"x" * (8 << 20))).status_code == 413
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_environments_proxy_holds_for_the_gateway_and_not_for_this_machine(monkeypatch) -> None:
    for name in (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    assert proxy_of("https://openrouter.ai/api/v1") is None
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert proxy_of("https://openrouter.ai/api/v1") == "http://proxy.example:3128"
    assert proxy_of("https://127.0.0.1:8443/v1") is None
    monkeypatch.setenv("no_proxy", "openrouter.ai")
    assert proxy_of("https://openrouter.ai/api/v1") is None


def test_open_files_are_raised_to_what_is_needed_or_refused_in_words() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        allow_open_files(500)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 756
        with pytest.raises(MissingError, match="open files"):
            allow_open_files(10**9)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
