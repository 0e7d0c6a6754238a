"""Progress on stderr: one live line on a terminal, a plain line of fixed form every few seconds elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

import trio

from eyrie.generate.buyer import Buyer
from eyrie.generate.window import TokenWindow

LINE_EVERY_S = 10.0
LIVE_EVERY_S = 0.5
RATE_S = 60.0  # speed is that of the last minute: a slow start does not spoil the forecast for an hour


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Times in seconds; `cost` in dollars, None where nothing can cost anything."""

    dataset: str
    elapsed: float
    rows: int
    total: int
    tokens: int  # output tokens of finished rows, those already in the vault included
    budget: int | None
    rate: float  # output tokens per second
    cost: Decimal | None
    eta: float | None
    busy: int
    limit: int  # what the limiter lets go out
    leased: int  # what the vault lets this job use
    state: str  # running, cooling 3 s, draining
    rejected: int
    faults: Mapping[str, int]

    @property
    def share(self) -> float:
        """How much of the work is done, 0 to 1."""
        done, whole = (self.tokens, self.budget) if self.budget else (self.rows, self.total)
        return min(1.0, done / whole) if whole else 1.0

    def line(self) -> str:
        """One log line; every field is always there, in this order."""
        faults = ", ".join(f"{name} {n}" for name, n in sorted(self.faults.items(), key=lambda item: (-item[1], item)))
        return ", ".join(
            (
                f"{self.dataset}: {clock(self.elapsed)} {self.state}",
                f"{self.rows:,}/{self.total:,} rows",
                f"{self.tokens:,}{f'/{self.budget:,}' if self.budget else ''} tokens",
                f"{self.rate:,.0f} tok/s",
                "free" if self.cost is None else f"${self.cost:.4f}",
                f"ETA {clock(self.eta)}",
                f"{self.busy} in flight (limit {self.limit}, leased {self.leased})",
                f"{self.rejected} rejected",
                f"{sum(self.faults.values())} faults" + (f" ({faults})" if faults else ""),
            )
        )

    def fields(self) -> list[tuple[int, str, str]]:
        """(importance, text, style) of the live line's fields from left to right; the least important go first when
        the terminal is narrow."""
        faults = sorted(self.faults.items(), key=lambda item: -item[1])
        return [
            (9, self.dataset, "bold"),
            (10, f"{self.share:.0%}", "cyan"),
            (5, f"{self.rows:,}/{self.total:,}", ""),
            (4, f"{short(self.tokens)}{f'/{short(self.budget)}' if self.budget else ''} tok", ""),
            (6, f"{short(self.rate)} tok/s", ""),
            *([(8, f"${self.cost:.2f}", "yellow")] if self.cost is not None else []),
            (7, f"ETA {clock(self.eta)}", "green"),
            (3, f"{self.busy} in flight", ""),
            (1, f"limit {self.limit} of {self.leased}", "dim"),
            *([(7, self.state, "magenta")] if self.state != "running" else []),
            *([(3, f"{self.rejected} rejected", "red")] if self.rejected else []),
            *([(2, "faults: " + ", ".join(f"{name} {n}" for name, n in faults[:3]), "red")] if faults else []),
        ]

    def fitted(self, width: int) -> list[tuple[str, str]]:
        """(text, style) of the fields that fit into `width` columns; the most important one always does, cut."""
        kept = self.fields()
        while len(kept) > 1 and sum(len(text) + 2 for _, text, _ in kept) - 2 > width:
            kept.remove(min(kept, key=lambda field: field[0]))
        return [(text[: max(width, 1)], style) for _, text, style in kept]


def clock(seconds: float | None) -> str:
    """Seconds as h:mm:ss, `-` when unknown."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def short(count: float) -> str:
    """A count in four characters or so: 950, 12.3k, 4.56M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


class Rate:
    """Speed over the last `RATE_S` seconds of a counter that only grows."""

    def __init__(self, now: float) -> None:
        self._seen: deque[tuple[float, float]] = deque([(now, 0.0)])

    def at(self, now: float, count: float) -> float:
        """Counts per second, after noting `count` now."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_S:
            self._seen.popleft()
        began, before = self._seen[0]
        return (count - before) / (now - began) if now > began else 0.0


class Progress:
    """Reads the counters of a run; never touches the vault. `finished`: rows that this run brought to an end, without
    those that the vault held whole, which pass in no time and would spoil the forecast."""

    def __init__(
        self, dataset: str, total: int, buyer: Buyer, window: TokenWindow, finished: Callable[[], int]
    ) -> None:
        self.dataset, self.total, self.buyer, self.window = dataset, total, buyer, window
        self._finished = finished
        self._began = trio.current_time()
        self._tokens, self._rows = Rate(self._began), Rate(self._began)

    def snapshot(self) -> Snapshot:
        """The run now."""
        tally, gate, window, now = self.buyer.tally, self.buyer.gate, self.window, trio.current_time()
        bought = tally.tokens
        rate = self._tokens.at(now, bought)
        rows_rate = self._rows.at(now, self._finished())
        cooling = gate.limiter.ready_at - now
        state = "draining" if gate.stop.called else f"cooling {cooling:.0f} s" if cooling > 0.5 else "running"
        if tally.held_back:
            state += f" ({tally.held_back} rows held back: a lost request of theirs may still be being answered)"
        return Snapshot(
            self.dataset, now - self._began, window.rows, self.total, window.tokens, window.budget, rate,
            tally.cost if self.buyer.paid else None, self._eta(rate, rows_rate), gate.busy, int(gate.limiter.limit),
            gate.leased, state, tally.rejected, tally.faults,
        )  # fmt: skip

    def _eta(self, rate: float, rows_rate: float) -> float | None:
        """Seconds that the missing tokens or rows take at today's speed, whichever ends first; None when unknown."""
        guesses = []
        if self.window.budget is not None and rate > 0:
            guesses.append(max(0.0, self.window.budget - self.window.tokens) / rate)
        if rows_rate > 0:
            guesses.append((self.total - self.window.rows) / rows_rate)
        return min(guesses, default=None)

    async def show(self) -> None:
        """Show until cancelled."""
        if sys.stderr.isatty():
            await self._live()
        while True:
            print(self.snapshot().line(), file=sys.stderr, flush=True)
            await trio.sleep(LINE_EVERY_S)

    async def _live(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(stderr=True)
        with Live(console=console, transient=True, auto_refresh=False, redirect_stdout=False) as live:
            while True:
                fields = self.snapshot().fitted(console.width - 1)
                text = Text("  ").join(Text(text, style) for text, style in fields)
                text.no_wrap, text.overflow = True, "ellipsis"
                live.update(text, refresh=True)
                await trio.sleep(LIVE_EVERY_S)
