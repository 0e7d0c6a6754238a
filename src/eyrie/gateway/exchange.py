"""One HTTP exchange: bytes out, a judged reply back, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

import httpx
import trio

from eyrie.gateway.clients import Client
from eyrie.gateway.errors import Blame, Fault, unreached
from eyrie.gateway.reply import Expected, Reply, classify
from eyrie.gateway.stream import read_body

NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True)
class Patience:
    """How long one request may take, in seconds."""

    silence: float  # without a byte; the clients' read timeout
    deadline: float  # in all: a body that drips is never silent


async def exchange(
    client: Client, url: str, body: bytes, headers: Mapping[str, str], expected: Expected,
    patience: Patience, *, note: Callable[[str], Awaitable[None]], redact: Callable[[bytes], bytes],
) -> Reply:  # fmt: skip
    """POST `body` and judge what comes back. `note` is awaited with the generation id as soon as the response's head
    is there: from then on the cost of a lost reply can be asked for. `redact` takes the key out of the body.

    Nothing but the deadline cancels: an aborted request is billed (in full without streaming, and with it by every
    provider that OpenRouter does not list as able to stop). So silence and the deadline use up an attempt of the row,
    unlike all other trouble on the way: a row that always takes too long would be paid for again and again.
    """
    generation: str | None = None
    try:
        with trio.fail_after(patience.deadline):
            async with client.stream("POST", url, content=body, headers=dict(headers)) as response:
                found = {name.lower(): value for name, value in response.headers.items()}
                generation = found.get("x-generation-id")
                if generation:
                    await note(generation)
                reply = await read_body(response)
        return classify(response.status_code, found, redact(reply.raw), expected, reply.problem)
    except trio.TooSlowError:
        fault = Fault(Blame.ROW, "deadline", f"not finished after {patience.deadline:g} s", maybe_billed=True)
    except httpx.ReadTimeout:
        fault = Fault(Blame.ROW, "silent", f"no byte for {patience.silence:g} s", maybe_billed=True)
    except NEVER_SENT as error:
        fault = unreached(error, url)
    except httpx.HTTPError as error:
        fault = Fault(Blame.GATEWAY, type(error).__name__, str(error), maybe_billed=True)
    cost = None if fault.maybe_billed and expected.paid else Decimal(0)
    return Reply(b"", fault=fault, cost=cost, generation_id=generation)
