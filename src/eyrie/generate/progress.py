"""Progress on stderr: one live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys

import trio

from eyrie.generate.buyer import Buyer
from eyrie.generate.window import TokenWindow

LINE_EVERY_S = 10.0
LIVE_EVERY_S = 0.5


class Progress:
    """Reads the counters of a run; never touches the vault."""

    def __init__(self, dataset: str, total: int, buyer: Buyer, window: TokenWindow) -> None:
        self.dataset, self.total, self.buyer, self.window = dataset, total, buyer, window
        self._began = trio.current_time()

    def line(self) -> str:
        """Done, tokens, speed, money, requests under way."""
        tally, gate = self.buyer.tally, self.buyer.gate
        seconds = max(trio.current_time() - self._began, 1e-9)
        faults = sum(tally.faults.values())
        parts = [
            f"{self.dataset}: {self.window.rows}/{self.total} rows",
            f"{self.window.tokens:,} tokens" + (f" of {self.window.budget:,}" if self.window.budget else ""),
            f"{tally.tokens / seconds:,.0f} tok/s",
            *([f"${tally.cost:.4f}"] if self.buyer.paid else []),
            f"{gate.busy} in flight (limit {min(gate.leased, int(gate.limiter.limit))})",
            *([f"{faults} faults"] if faults else []),
            *([f"{tally.rejected} rejected"] if tally.rejected else []),
        ]
        return ", ".join(parts)

    async def show(self) -> None:
        """Show until cancelled."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            with Live(Text(self.line()), console=Console(stderr=True), transient=True, auto_refresh=False) as live:
                while True:
                    await trio.sleep(LIVE_EVERY_S)
                    live.update(Text(self.line()), refresh=True)
        while True:
            await trio.sleep(LINE_EVERY_S)
            print(self.line(), file=sys.stderr, flush=True)
