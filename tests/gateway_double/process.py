"""Start and stop the double from a test."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]


class Double:
    """The server in a child process. `url` is the base URL that a gateway's settings take; `pid` its process."""

    def __init__(self, **script: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway_double.server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/api/v1"
        if script:
            self.change(**script)

    def __enter__(self) -> Double:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait(10)

    def change(self, **script: Any) -> None:
        """Change the script from now on."""
        httpx.post(f"{self.url}/control", json=script, trust_env=False).raise_for_status()

    def reset(self, **script: Any) -> None:
        """Begin anew: no ledger, no cache, the default script with `script`."""
        httpx.delete(f"{self.url}/control", trust_env=False).raise_for_status()
        if script:
            self.change(**script)

    def state(self) -> dict[str, Any]:
        """Ledger and counters."""
        return httpx.get(f"{self.url}/control", trust_env=False, timeout=60).json()

    def brief(self) -> dict[str, Any]:
        """`state` without the ledger: cheap, however long it is."""
        return httpx.get(f"{self.url}/control?brief=1", trust_env=False, timeout=60).json()

    @property
    def ledger(self) -> list[dict[str, Any]]:
        return self.state()["ledger"]

    @property
    def billed(self) -> Decimal:
        return Decimal(self.brief()["billed"])
