"""One breaker per endpoint: who fails is left out of the requests' lists for a while, and let back in by probes.

The gateway routes among the endpoints that a request names, but it goes on routing to one that fails in its own ways
(empty bodies, errors after it began). Leaving it out narrows the list inside the policy; nothing ever widens it. When
every endpoint is out, nothing is sent until one may be probed.

Endpoints of one provider share a breaker, since a reply names its provider, not the endpoint.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from eyrie.errors import ExitCode
from eyrie.gateway.errors import Blame, Fault
from eyrie.gateway.providers import Endpoint
from eyrie.gateway.reply import Reply

WATCHED = 20  # last outcomes that are looked at
FAULTS, SHARE = 6, 0.6  # so many of them, and such a share, open the breaker
OPEN_S, OPEN_MAX_S = 10.0, 300.0  # out for so long at first; doubles with every probe that fails
JITTER = 0.2
PROBES = 2  # good probes in a row that let an endpoint back in
# Faults of a row that say nothing against the endpoint: the target itself would do the same elsewhere.
OF_THE_ROW = frozenset({"moderated", "refused", "context_length", "max_tokens", "too_large", "invalid_request",
                        "unprocessable", "repetition", "deadline", "silent"})  # fmt: skip


@dataclass(frozen=True)
class Route:
    """Which endpoints one request may name: `tags` None = all of the policy. `probe` is the provider on trial."""

    tags: frozenset[str] | None = None
    probe: str | None = None


EVERYWHERE = Route()


@dataclass
class Health:
    """What is known of one provider's endpoints. Times in seconds of one monotonic clock."""

    tags: frozenset[str]
    outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=WATCHED))
    until: float | None = None  # out, and to be probed from then on; None: in
    since: float = float("-inf")  # the last change; what was sent before says nothing about now
    period: float = OPEN_S
    probing: bool = False
    good_probes: int = 0

    @property
    def failing(self) -> bool:
        faults = self.outcomes.count(False)
        return faults >= FAULTS and faults >= SHARE * len(self.outcomes)


class Breaker:
    """The breakers of a job. Without endpoints (a gateway that is one server) every route is `EVERYWHERE`."""

    def __init__(self, endpoints: Iterable[Endpoint] = (), rng: random.Random | None = None) -> None:
        tags: dict[str, set[str]] = {}
        for endpoint in endpoints:
            tags.setdefault(endpoint.provider_name, set()).add(endpoint.tag)
        self.health = {name: Health(frozenset(found)) for name, found in tags.items()}
        self._random = rng or random.Random()
        self._route = EVERYWHERE
        self.notes: list[str] = []

    @property
    def out(self) -> list[str]:
        """Providers that are left out now."""
        return sorted(name for name, health in self.health.items() if health.until is not None)

    def route(self, now: float) -> Route | None:
        """Where the next request may go: a due probe first, else everybody who is in; None while all are out.

        A probe that is handed out must come back through `judge` or `unsent`."""
        for name, health in self.health.items():
            if health.until is not None and health.until <= now and not health.probing:
                health.probing = True
                return Route(health.tags, name)
        return None if self._route.tags == frozenset() else self._route

    def news(self) -> list[str]:
        """What changed since this was last asked, in words."""
        taken, self.notes = self.notes, []
        return taken

    def unsent(self, route: Route) -> None:
        """A request with this route was not sent, or under another one."""
        if route.probe is not None:
            self.health[route.probe].probing = False

    def judge(self, reply: Reply, route: Route, sent_at: float, now: float) -> bool:
        """Learn from a reply; whether its fault is some endpoint's own (then nobody else has to slow down).

        An overload that the gateway itself reports (HTTP status, no provider began) is everybody's: every endpoint
        in the list was tried. Where the list was one endpoint, it is that endpoint's.
        """
        fault = reply.fault
        failed = {name: status for name, status in reply.tried if name in self.health}
        everybodys = fault is not None and fault.blame is Blame.OVERLOAD and reply.status not in (None, 200)
        if everybodys:
            failed = {}
        if reply.provider in self.health and _is_its_fault(reply):
            failed[str(reply.provider)] = reply.status
        if route.probe is not None:
            self._judge_probe(route.probe, reply, failed, now)
            failed.pop(route.probe, None)
        wait = fault.retry_after if fault is not None else None
        for name in failed:
            self._add(name, False, sent_at, now, reply, wait)
        good = fault is None or fault.blame in (Blame.ROW, Blame.PERMANENT)
        if good and reply.provider in self.health and reply.provider not in failed and reply.provider != route.probe:
            self._add(str(reply.provider), True, sent_at, now, reply, None)
        return bool(failed) or (route.probe is not None and not good)

    def _judge_probe(self, name: str, reply: Reply, failed: dict[str, int | None], now: float) -> None:
        health, fault = self.health[name], reply.fault
        health.probing = False
        if fault is not None and fault.blame is Blame.RUN:
            return  # the run ends for a reason of its own
        bad = name in failed or (fault is not None and fault.blame in (Blame.GATEWAY, Blame.OVERLOAD))
        if bad:
            health.period = min(OPEN_MAX_S, 2 * health.period)
            self._open(name, now, fault.retry_after if fault is not None else None, f"a probe failed: {_word(reply)}")
            return
        health.good_probes += 1
        if health.good_probes >= PROBES:
            health.until, health.period, health.since = None, OPEN_S, now
            health.outcomes.clear()
            self._changed(f"{name} is back in after {PROBES} good probes")

    def _add(self, name: str, good: bool, sent_at: float, now: float, reply: Reply, wait: float | None) -> None:
        health = self.health[name]
        if health.until is not None or sent_at < health.since:
            return
        health.outcomes.append(good)
        if health.failing:
            faults = f"{health.outcomes.count(False)} of {len(health.outcomes)} requests failed: {_word(reply)}"
            self._open(name, now, wait, faults)

    def _open(self, name: str, now: float, wait: float | None, why: str) -> None:
        health = self.health[name]
        seconds = max(wait or 0.0, health.period * self._random.uniform(1 - JITTER, 1 + JITTER))
        health.until, health.since, health.good_probes = now + seconds, now, 0
        health.outcomes.clear()
        self._changed(f"{name} is left out for {seconds:.0f} s ({why})")

    def _changed(self, note: str) -> None:
        inside = [health.tags for health in self.health.values() if health.until is None]
        self._route = EVERYWHERE if len(inside) == len(self.health) else Route(frozenset().union(*inside))
        if not inside:
            note += "; no endpoint of the policy is left: the run pauses until one can be probed"
        self.notes.append(note)


def _is_its_fault(reply: Reply) -> bool:
    fault = reply.fault
    if fault is None or fault.blame in (Blame.PERMANENT, Blame.RUN):
        return False
    return fault.blame is not Blame.ROW or fault.reason not in OF_THE_ROW


def _word(reply: Reply) -> str:
    return reply.fault.reason if reply.fault is not None else "another one answered instead"


def may_be_cached(reply: Reply, fault: Fault) -> bool:
    """Whether a whole answer may have been lost on the way: the response cache gives it back to the same bytes only.
    An error that names an endpoint is no answer, and the next attempt may leave that endpoint out."""
    return fault.maybe_billed and reply.provider is None and not reply.tried


def unlisted(reply: Reply, *, narrowed: bool) -> Reply:
    """To a narrowed list, "no endpoint" says that those endpoints are gone, not that the policy is empty."""
    fault = reply.fault
    if not narrowed or fault is None or fault.code is not ExitCode.POLICY_EMPTY:
        return reply
    return replace(reply, fault=replace(fault, blame=Blame.GATEWAY))
