"""An httpx transport for many slow requests: httpcore's HTTP/1.1 with head and body of a request in one write.

httpcore writes the head and the body of a request apart: two system calls, two packets, and on a TLS connection two
records. Here a stream keeps what is written until the answer is read, which HTTP/1.1 does next in any case.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx


@contextmanager
def _as_httpx() -> Iterator[None]:
    """httpx names httpcore's errors alike."""
    try:
        yield
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError,
            httpcore.UnsupportedProtocol) as error:  # fmt: skip
        raise getattr(httpx, type(error).__name__, httpx.TransportError)(str(error)) from error


class OneWriteStream(httpcore.AsyncNetworkStream):
    """A stream that sends what was written when it is read, closed or wrapped in TLS.

    A write that fails then shows as httpcore's read error would: the server has gone before it answered.
    """

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._pending: list[bytes] = []
        self._timeout: float | None = None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self._pending.append(buffer)
            self._timeout = timeout

    async def _flush(self) -> None:
        data, self._pending = b"".join(self._pending), []
        try:
            await self._inner.write(data, timeout=self._timeout)
        except httpcore.WriteError:
            return  # a server may answer and close before it has read everything; the read tells

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._pending:
            await self._flush()
        return await self._inner.read(max_bytes, timeout=timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return OneWriteStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class OneWriteBackend(httpcore.TrioBackend):
    """Connects as trio does, and writes once per request."""

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return OneWriteStream(await super().connect_tcp(*args, **kwargs))


class _Body(httpx.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class Transport(httpx.AsyncBaseTransport):
    """A pool of HTTP/1.1 connections without a limit: admission is decided above, and a connection that a cancelled
    request leaks then costs memory, not a deadlock. `keepalive_s`: idle connections are closed after so long."""

    def __init__(self, tls: ssl.SSLContext | None, keepalive_s: float) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls, max_connections=None, max_keepalive_connections=None, keepalive_expiry=keepalive_s,
            network_backend=OneWriteBackend(),
        )  # fmt: skip

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        inner = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw, content=request.stream, extensions=request.extensions,
        )  # fmt: skip
        with _as_httpx():
            response = await self._pool.handle_async_request(inner)
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response.stream), extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()
