"""GET JSON from the gateway: catalogue and key, a few calls per run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from eyrie.errors import ExitCode, EyrieError, InputError, MissingError
from eyrie.gateway.clients import is_loopback
from eyrie.gateway.errors import http_fault
from eyrie.gateway.key import NO_KEY, ApiKey

TRIES = 5
LONGEST_ITEM = 8 << 20  # characters of one entry of a listing

T = TypeVar("T")


def get_json(base: str, path: str, key: ApiKey = NO_KEY, *, pause_s: float = 1.0) -> Any:
    """The JSON at `base`/`path`; overload and network trouble are tried `TRIES` times with growing pauses.

    Raises MissingError when nothing usable answers, EyrieError(KEY_REFUSED) on 401, InputError on 404.
    """
    return _get(base, path, key, lambda response: json.loads(response.read()), pause_s)


def scan_items(
    base: str, path: str, take: Callable[[Iterator[Any]], T], key: ApiKey = NO_KEY, *, pause_s: float = 1.0
) -> T:
    """What `take` makes of the entries of the listing at `base`/`path`, read as they arrive.

    A listing of hundreds of models never stands in memory as a whole, and the connection is closed when `take` has
    seen enough. Raises as `get_json` does.
    """
    return _get(base, path, key, lambda response: take(items(response.iter_text())), pause_s)


def items(chunks: Iterable[str], key: str = "data") -> Iterator[Any]:
    """The elements of the array under `key` of a JSON object that arrives in pieces, one at a time.

    Raises ValueError when it is no such object, is cut off, or an element is longer than `LONGEST_ITEM`.
    """
    source, decoder = iter(chunks), json.JSONDecoder()
    text, at = "", 0

    def more() -> None:
        """Read on; what lies before `at` is forgotten."""
        nonlocal text, at
        wanted = max(2 * (len(text) - at), 1)  # twice as much before the next try, so that trying stays linear
        if wanted > 2 * LONGEST_ITEM:
            raise ValueError("an entry of absurd length")
        pieces, held = [text[at:]], len(text) - at
        while held < wanted:
            piece = next(source, None)
            if piece is None:
                if held == len(text) - at:
                    raise ValueError("cut off")
                break
            pieces.append(piece)
            held += len(piece)
        text, at = "".join(pieces), 0

    def skip(characters: str) -> str:
        """The next character that is none of these."""
        nonlocal at
        while True:
            while at < len(text) and text[at] in characters:
                at += 1
            if at < len(text):
                return text[at]
            more()

    def value() -> Any:
        nonlocal at
        while True:
            try:
                found, end = decoder.raw_decode(text, at)
            except json.JSONDecodeError:
                more()
                continue
            if end == len(text):  # a number may go on in the next piece
                more()
                continue
            at = end
            return found

    if skip(" \t\r\n") != "{":
        raise ValueError("no JSON object")
    at += 1
    while skip(" \t\r\n,") != "}":
        name = value()
        if skip(" \t\r\n") != ":":
            raise ValueError("no JSON object")
        at += 1
        first = skip(" \t\r\n")
        if name != key:
            value()
            continue
        if first != "[":
            raise ValueError(f"{key} is no list")
        at += 1
        while skip(" \t\r\n,") != "]":
            yield value()
        return
    raise ValueError(f"has no {key}")


def _get(base: str, path: str, key: ApiKey, read: Callable[[httpx.Response], T], pause_s: float) -> T:
    url, trouble = f"{base}/{path}", ""
    with httpx.Client(headers=key.headers(), timeout=60, trust_env=not is_loopback(base)) as client:
        for attempt in range(TRIES):
            if attempt:
                time.sleep(pause_s * 2 ** (attempt - 1))
            try:
                with client.stream("GET", url) as response:
                    if response.status_code == 200:
                        return read(response)
                    response.read()
            except httpx.HTTPError as error:
                trouble = "no server is up there" if isinstance(error, httpx.ConnectError) else type(error).__name__
                continue
            except ValueError as error:
                trouble = f"the reply is no JSON listing: {error}" if str(error) else "the reply is no JSON"
                continue
            headers = {name.lower(): value for name, value in response.headers.items()}
            fault = http_fault(response.status_code, headers, response.content)
            trouble = key.redact(f"HTTP {response.status_code} {fault.detail}".strip())
            if response.status_code == 401:
                raise EyrieError(f"{url}: the key was refused ({trouble})", code=ExitCode.KEY_REFUSED)
            if response.status_code == 404:
                hint = "" if urlsplit(base).path.strip("/") else f"; most servers answer under {base}/v1"
                raise InputError(f"{url}: not found ({trouble}){hint}")
            if response.status_code < 500 and response.status_code not in (403, 408, 429):
                break
            if fault.retry_after is not None:
                time.sleep(min(fault.retry_after, 60))
    raise MissingError(f"{url}: no usable reply ({trouble}); is the address right and the network up?")
