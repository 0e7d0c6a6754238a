"""Where the answers come from, as an address: given, or that of a server started for this job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from eyrie.errors import InputError
from eyrie.gateway.clients import base_url


@contextlib.contextmanager
def open_gateway(
    kind: str, given: str | None, *, target: Path | None, width: int = 32, threads: int | None = None,
    catalogue_only: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield the gateway's base URL; the embedded server lives as long as the context.

    `catalogue_only`: the embedded server lists its model without loading it. An address given for the embedded
    gateway is used as it is (a server that somebody else started).
    """
    if kind != "embedded" or given:
        yield base_url(kind, given)
        return
    if target is None:
        raise InputError("--target is needed by the embedded gateway: the target.json of the model to serve")
    from eyrie.gateway.embedded import serve

    with serve(target, width=width, threads=threads, catalogue_only=catalogue_only) as url:
        yield url
