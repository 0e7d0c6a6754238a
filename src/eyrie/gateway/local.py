"""Where the answers come from, as an address: given, or that of a server started for this job."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eyrie.errors import InputError
from eyrie.gateway.clients import base_url
from eyrie.gateway.launch import Launch, launched


@dataclass(frozen=True)
class Gateway:
    """An open gateway. `problem` says why a server of this job's own answers no more, None while it lives."""

    url: str
    problem: Callable[[], str | None] = lambda: None


@contextlib.contextmanager
def open_gateway(
    kind: str, given: str | None, *, target: Path | None, width: int = 32, threads: int | None = None,
    catalogue_only: bool = False, launch: Launch | None = None, server_log: Path | None = None,
) -> Iterator[Gateway]:  # fmt: skip
    """Yield the gateway; a server that this starts lives as long as the context.

    Started are the embedded server, and SGLang or vLLM by `launch` (its output goes to `server_log`). An address that
    is given is used as it is: somebody else's server. `catalogue_only`: the embedded server lists its model without
    loading it. Raises EyrieError with the server's own reason when it does not start.
    """
    if given or (kind != "embedded" and launch is None):
        yield Gateway(base_url(kind, given))
        return
    if target is None:
        raise InputError("--target is needed by a gateway that serves the target here: its target.json")
    if launch is None:
        from eyrie.gateway.embedded import serve

        with serve(target, width=width, threads=threads, catalogue_only=catalogue_only) as url:
            yield Gateway(url)
        return
    if server_log is None:
        raise InputError("--server-log is needed to start a server: the file that its output goes to")
    from eyrie.target import load_receipt

    receipt = load_receipt(target)
    with launched(launch, receipt.path, receipt.name, server_log, _say) as server:
        yield Gateway(server.url, server.problem)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
