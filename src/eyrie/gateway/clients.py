"""Connections: HTTP/1.1, many small pools instead of one.

httpcore's pool walks all its connections at every request, so one client of 2000 connections is unusable; clients of
at most `slots_per_client` slots share one TLS context. HTTP/2 would put everything on one connection of 100 streams
and never tell the server of a cancelled request.
"""

from __future__ import annotations

import ipaddress
import resource
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from eyrie.errors import InputError, MissingError
from eyrie.gateway.key import ApiKey
from eyrie.gateway.transport import Transport

OPENROUTER = "https://openrouter.ai/api/v1"
CONNECT_S, WRITE_S = 30.0, 60.0
# Idle connections are closed after so long, before any known server closes them (uvicorn after 5 s): a request on a
# connection that the server closes at that moment fails, and nobody can tell whether it is billed. While the run is
# busy a connection idles for milliseconds.
KEEPALIVE_S = 4.0


def base_url(kind: str, given: str | None) -> str:
    """The address that `chat/completions` is appended to, without a slash at the end."""
    url = given or (OPENROUTER if kind == "openrouter" else "")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"gateway.base_url={given!r}: must be like http://127.0.0.1:30000/v1")
    if parts.username or parts.password:
        raise InputError("gateway.base_url: must hold no user or password; the key belongs into gateway.api_key_file")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether `url` is on this machine (then no proxy applies)."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def proxy_of(url: str) -> str | None:
    """The proxy that the environment sets for `url` (`https_proxy`, `all_proxy`, `no_proxy`); none for loopback."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def allow_open_files(needed: int) -> None:
    """Raise the soft limit of open files to hold `needed` sockets. Raises MissingError when the hard one forbids."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = needed + 256
    if soft != resource.RLIM_INFINITY and soft < want:
        if hard != resource.RLIM_INFINITY and hard < want:
            raise MissingError(
                f"generate.in_flight={needed} needs {want} open files, the limit is {hard}; raise it (ulimit -n)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))


class Client:
    """Requests over one transport, without what `httpx.AsyncClient` does for browsers (cookies, redirects, mounts),
    which costs as much as the request itself."""

    def __init__(self, transport: httpx.AsyncBaseTransport, headers: Mapping[str, str], timeout: httpx.Timeout) -> None:
        self._transport, self._headers, self._timeout = transport, dict(headers), timeout

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None, timeout: float | None = None,
    ) -> AsyncIterator[httpx.Response]:  # fmt: skip
        """Send and give the response, its body unread. `timeout`: longest silence, if not the client's own. Raises
        httpx.HTTPError."""
        limits = replace_read(self._timeout, timeout)
        request = httpx.Request(
            method, url, params=params, content=content, headers={**self._headers, **(headers or {})},
            extensions={"timeout": limits},
        )  # fmt: skip
        response = await self._transport.handle_async_request(request)
        response.request = request
        try:
            yield response
        finally:
            await response.aclose()

    async def get(
        self, url: str, *, params: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> httpx.Response:
        """GET with the whole body. Raises httpx.HTTPError."""
        async with self.stream("GET", url, params=params, timeout=timeout) as response:
            await response.aread()
            return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def replace_read(timeout: httpx.Timeout, read: float | None) -> dict[str, float | None]:
    """`timeout` as a transport takes it, with another longest silence."""
    return timeout.as_dict() if read is None else {**timeout.as_dict(), "read": read}


@dataclass
class Clients:
    """Lazily opened clients; slot `s` belongs to client `s // slots_per_client`. Use as an async context manager."""

    url: str
    key: ApiKey
    slots_per_client: int
    timeout_s: float  # longest silence of a request
    keepalive_s: float = KEEPALIVE_S
    _open: dict[int, Client] = field(default_factory=dict, repr=False)
    _tls: ssl.SSLContext | None = field(default=None, repr=False)

    def of(self, slot: int) -> Client:
        """The client of a slot."""
        shard = slot // self.slots_per_client
        if shard not in self._open:
            self._open[shard] = self._make()
        return self._open[shard]

    def _make(self) -> Client:
        if self._tls is None and self.url.startswith("https"):
            self._tls = httpx.create_ssl_context()  # loading the roots takes longer than all the rest
        transport: httpx.AsyncBaseTransport
        if (proxy := proxy_of(self.url)) is not None:
            limits = httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=self.keepalive_s
            )
            transport = httpx.AsyncHTTPTransport(verify=self._tls or False, limits=limits, proxy=proxy)
        else:
            transport = Transport(self._tls, self.keepalive_s)
        timeout = httpx.Timeout(connect=CONNECT_S, read=self.timeout_s, write=WRITE_S, pool=None)
        host = httpx.URL(self.url).netloc.decode()
        headers = {"Host": host, "Accept": "*/*", "User-Agent": "eyrie", "Content-Type": "application/json"}
        return Client(transport, {**headers, **self.key.headers()}, timeout)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        for client in self._open.values():
            await client.aclose()
