"""The double's own books: what it billed for which request, what it keeps in its cache, what the account has left."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from decimal import Decimal
from typing import Any

from tests.gateway_double.answers import chance, digest
from tests.gateway_double.script import DEFAULT_SCRIPT


class Books:
    """Script, ledger, records, cache and counters. Never forgets anything but by `DELETE /control`."""

    def __init__(self) -> None:
        self.script: dict[str, Any] = json.loads(json.dumps(DEFAULT_SCRIPT))
        self.ledger: list[dict[str, Any]] = []
        self.billed = Decimal(0)
        self.records: dict[str, tuple[float, dict[str, Any]]] = {}  # generation id -> (known from, record)
        self.late: deque[tuple[float, Decimal]] = deque()  # bills that /key does not know yet
        self.known_usage = Decimal(0)
        self.cache: dict[str, bytes] = {}
        self.seen: Counter[str] = Counter()  # requests by their bytes' digest
        self.arrivals: list[str] = []  # the same in the order in which they came
        self.whole: Counter[str] = Counter()  # whole answers made, by the same
        self.faults: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()  # requests under way, by endpoint tag
        self.statuses: Counter[int] = Counter()
        self.paths: Counter[str] = Counter()
        self.in_flight = self.peak = self.requests = self.hits = self.abandoned = self.connections = 0
        self.last_headers: dict[str, str] = {}
        self.last_body = ""

    def now(self) -> float:
        """Seconds of the double's clock."""
        return asyncio.get_running_loop().time() * self.script["clock"]

    async def sleep(self, seconds: float) -> None:
        """Sleep so many seconds of the double's clock."""
        await asyncio.sleep(seconds / self.script["clock"])

    def choose_fault(self, body: bytes) -> str | None:
        """The fault that this request meets: by plan, else by rate; fixed by the body and how often it came."""
        self.seen[digest(body)] += 1
        self.arrivals.append(digest(body))
        text = body.decode()
        for step in self.script["plan"]:
            if step["times"] > 0 and step["match"] in text:
                step["times"] -= 1
                return step["fault"]
        point, edge = chance(body, self.seen[digest(body)], "fault"), 0.0
        for name, rate in sorted(self.script["rates"].items()):
            edge += rate
            if point < edge:
                return name
        return None

    def generation_id(self, body: bytes, whole: bool, fault: str | None) -> str:
        """The first whole answer to a request has an id fixed by the request; what is made again has another."""
        stem, mark = "gen-" + digest(body)[:20], digest(body)
        if not whole:
            return f"{stem}-{fault}-{self.seen[mark]}"
        self.whole[mark] += 1
        return stem if self.whole[mark] == 1 else f"{stem}-{self.whole[mark]}"

    def bill(self, body: bytes, generation_id: str, cost: Decimal, tag: str, provider: str, usage: Any, why: str,
             *, gone: bool, streamed: bool, seconds: float) -> None:  # fmt: skip
        """Enter a generation into the ledger; `/generation` and `/key` hear of it after their lags."""
        counts = usage if isinstance(usage, dict) else {}
        self.billed += cost
        self.ledger.append(
            {"id": generation_id, "digest": digest(body), "cost": format(cost, "f"), "tag": tag, "provider": provider,
             "tokens": counts.get("completion_tokens", 0), "why": why, "client_gone": gone, "at": self.now(),
             "seconds": seconds}
        )  # fmt: skip
        self.late.append((self.now() + self.script["key_usage_lag"], cost))
        details = counts.get("completion_tokens_details") or {}
        record = {
            "id": generation_id, "total_cost": float(cost), "usage": float(cost), "provider_name": provider,
            "native_tokens_prompt": counts.get("prompt_tokens", 0),
            "native_tokens_completion": counts.get("completion_tokens", 0),
            "native_tokens_reasoning": details.get("reasoning_tokens", 0),
            "native_tokens_cached": (counts.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            "streamed": streamed, "cancelled": gone, "is_byok": False, "response_cache_source_id": None,
        }  # fmt: skip
        self.records[generation_id] = (self.now() + self.script["generation_lag"], record)

    def record(self, generation_id: str) -> dict[str, Any] | None:
        """What `/generation` says of a request; None while it does not know it."""
        known, record = self.records.get(generation_id, (float("inf"), {}))
        return record if self.now() >= known else None

    def key_usage(self) -> Decimal:
        """What `/key` says was spent."""
        while self.late and self.late[0][0] <= self.now():
            self.known_usage += self.late.popleft()[1]
        return self.known_usage

    def key_data(self) -> dict[str, Any]:
        """`GET /key`. Its label holds a piece of the key, as the real one does."""
        usage, limit = self.key_usage(), self.script["key_limit"]
        sent = self.last_headers.get("authorization", "").removeprefix("Bearer ")
        return {
            "label": f"{sent[:12]}...{sent[-3:]}", "limit": limit, "limit_reset": None,
            "limit_remaining": None if limit is None else float(Decimal(str(limit)) - usage),
            "usage": float(usage), "usage_daily": float(usage), "usage_weekly": float(usage),
            "usage_monthly": float(usage), "byok_usage": 0, "is_free_tier": False, "is_management_key": False,
            "include_byok_in_limit": False, "creator_user_id": "user",
            "rate_limit": {"requests": -1, "interval": "10s"},
        }  # fmt: skip

    def affordable(self, worst: Decimal) -> str | None:
        """None when account and key can pay `worst` (by what they paid so far), else which of them cannot."""
        for source, name in (("account", "credits"), ("key", "key_limit")):
            limit = self.script[name]
            if limit is not None and self.billed + worst > Decimal(str(limit)):
                return source
        return None

    def facts(self, brief: bool) -> dict[str, Any]:
        """What `GET /control` returns."""
        found = {
            "billed": format(self.billed, "f"), "bills": len(self.ledger), "peak": self.peak, "hits": self.hits,
            "requests": self.requests, "faults": dict(self.faults), "headers": self.last_headers,
            "body": self.last_body, "in_flight": self.in_flight, "abandoned": self.abandoned,
            "statuses": {str(code): n for code, n in self.statuses.items()}, "paths": dict(self.paths),
            "connections": self.connections, "clock": self.now(),
        }  # fmt: skip
        return found if brief else {**found, "ledger": self.ledger, "arrivals": self.arrivals}
