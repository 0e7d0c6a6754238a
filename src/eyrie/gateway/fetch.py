"""GET a JSON document from the gateway: catalogue and key, a few calls per run."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from eyrie.errors import ExitCode, EyrieError, InputError, MissingError
from eyrie.gateway.clients import is_loopback
from eyrie.gateway.errors import http_fault
from eyrie.gateway.key import NO_KEY, ApiKey

TRIES = 5


def get_json(base: str, path: str, key: ApiKey = NO_KEY, *, pause_s: float = 1.0) -> Any:
    """The JSON at `base`/`path`; overload and network trouble are tried `TRIES` times with growing pauses.

    Raises MissingError when nothing usable answers, EyrieError(KEY_REFUSED) on 401, InputError on 404.
    """
    url, trouble = f"{base}/{path}", ""
    with httpx.Client(headers=key.headers(), timeout=60, trust_env=not is_loopback(base)) as client:
        for attempt in range(TRIES):
            if attempt:
                time.sleep(pause_s * 2 ** (attempt - 1))
            try:
                response = client.get(url)
                if response.status_code == 200:
                    return response.json()
            except httpx.HTTPError as error:
                trouble = "no server is up there" if isinstance(error, httpx.ConnectError) else type(error).__name__
                continue
            except ValueError:
                trouble = "the reply is no JSON"
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
