"""What goes into the vault and comes out of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

DATA = ("ok", "length")  # verdicts of answers that can be used; any other verdict is a rejected row


@dataclass(frozen=True, order=True)
class Identity:
    """What an answer answers. The request's fingerprint stands beside it, not in it."""

    model: str
    dataset: str
    row: str
    turn: int
    repetition: int

    @property
    def values(self) -> tuple[str, str, str, int, int]:
        return (self.model, self.dataset, self.row, self.turn, self.repetition)


@dataclass(frozen=True)
class Usage:
    """Tokens by the server's own count."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Answer:
    """One stored answer, or a rejected row (`is_data` false; `raw` only when a reply with status 200 was
    refused: its text was paid for and is kept as it came). `cost` in micro-dollars."""

    fingerprint: str
    verdict: str
    raw: bytes | None = field(repr=False)
    usage: Usage = Usage()
    finish_reason: str | None = None
    provider: str | None = None
    served_model: str | None = None
    generation_id: str | None = None
    cost: int = 0
    shared: bool = False
    error: str | None = None

    @property
    def is_data(self) -> bool:
        return self.verdict in DATA

    @property
    def reply(self) -> Any:
        """The reply as JSON."""
        return json.loads(self.raw or b"{}", parse_constant=lambda name: None)


class Word(NamedTuple):
    """What the vault says of one identity without reading the reply."""

    verdict: str
    completion_tokens: int
    cost: int  # micro-dollars; 0 when shared
    shared: bool


@dataclass(frozen=True)
class Limits:
    """Budgets in micro-dollars, each of what is settled, unknown and reserved together; None = no such budget.

    `run` of all its datasets, `account` of all runs that pay with its key, `dataset` of one dataset in one run.
    """

    run: int
    account: int | None = None
    dataset: int | None = None


@dataclass(frozen=True)
class Wanted:
    """A request that asks to be sent. In micro-dollars: `reserve` is held while it is under way, `worst` is the most
    that it can cost (None = the same; 0 = it is free). `answer_s`: for so many seconds after an attempt was sent that
    got lost, its answer may still be on the way."""

    identity: Identity
    fingerprint: str
    body: bytes = field(repr=False)
    reserve: int = 0
    rebuy: bool = False
    worst: int | None = None
    answer_s: float = 0.0

    @property
    def at_worst(self) -> int:
        return self.reserve if self.worst is None else self.worst


class Decision(Enum):
    STORED = "stored"  # the vault holds the answer (or the rejection)
    SEND = "send"  # journalled as sent; durable when the caller hears of it
    BUSY = "busy"  # an identical request is under way
    EARLY = "early"  # a lost attempt may still be being answered: asked again now, it is paid twice
    WAIT = "wait"  # the budget is held by requests under way
    OVER = "over"  # the budget does not allow this request any more


@dataclass(frozen=True)
class Admission:
    """The vault's word on a `Wanted`. `body` is what to send: the bytes of a lost attempt when there was one."""

    decision: Decision
    answer: Answer | None = None
    entry: int = 0
    body: bytes = field(default=b"", repr=False)
    faults: int = 0  # attempts that failed through the row's own fault
    lost: tuple[tuple[int, str | None], ...] = ()  # (journal entry, generation id) of unknown attempts
    scope: str = ""  # OVER and WAIT: whose budget it is: run, account or dataset
    needed: int = 0  # OVER: micro-dollars that the budget lacks
    unknown: int = 0  # OVER: micro-dollars held for requests whose cost is unknown
    wait_s: float = 0.0  # EARLY: seconds until the lost attempt has surely been answered
