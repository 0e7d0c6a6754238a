"""Connections: httpx over HTTP/1.1, many small clients instead of one.

httpx's pool walks all its connections at every request, so one client of 2000 connections is unusable; clients of
at most `slots_per_client` slots share one TLS context. HTTP/2 would put everything on one connection of 100 streams
and never tell the server of a cancelled request.
"""

from __future__ import annotations

import ipaddress
import resource
import ssl
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from eyrie.errors import InputError, MissingError
from eyrie.gateway.key import ApiKey

OPENROUTER = "https://openrouter.ai/api/v1"
CONNECT_S, WRITE_S = 30.0, 60.0


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


@dataclass
class Clients:
    """Lazily opened clients; slot `s` belongs to client `s // slots_per_client`. Use as an async context manager."""

    url: str
    key: ApiKey
    slots_per_client: int
    timeout_s: float  # longest silence of a request
    _open: dict[int, httpx.AsyncClient] = field(default_factory=dict, repr=False)
    _tls: ssl.SSLContext | None = field(default=None, repr=False)

    def of(self, slot: int) -> httpx.AsyncClient:
        """The client of a slot."""
        shard = slot // self.slots_per_client
        if shard not in self._open:
            self._open[shard] = self._make()
        return self._open[shard]

    def _make(self) -> httpx.AsyncClient:
        if self._tls is None and self.url.startswith("https"):
            self._tls = httpx.create_ssl_context()  # loading the roots takes longer than all the rest
        return httpx.AsyncClient(
            http2=False, verify=self._tls or False, trust_env=not is_loopback(self.url),
            headers={"Content-Type": "application/json", **self.key.headers()},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60),
            timeout=httpx.Timeout(connect=CONNECT_S, read=self.timeout_s, write=WRITE_S, pool=None),
        )  # fmt: skip

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        for client in self._open.values():
            await client.aclose()
