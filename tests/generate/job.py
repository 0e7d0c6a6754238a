"""A generate job against the double, as its rule would call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from eyrie import cli
from eyrie.files import canonical_json, read_jsonl_zst, write_jsonl_zst
from eyrie.vault import Vault
from tests.gateway_double import Double

KEY = "sk-" + "or-v1-" + "canary0123456789abcdef0123456789"


class Job:
    """One dataset of one run in `folder`; `change` settings before `run`."""

    def __init__(
        self, folder: Path, double: Double | None, rows: int = 10, kind: str = "openrouter", name: str = "demo"
    ) -> None:
        self.folder, self.double, self.name = folder, double, name
        folder.mkdir(parents=True, exist_ok=True)
        key_file = folder / "key.txt"
        key_file.write_text(KEY + "\n")
        policy: dict[str, Any] = {"quantizations": ["int4", "fp8"]}
        self.cut: dict[str, Any] = {
            "dataset": {"name": name, "max_tokens": None, "tokens": None, "turns": 1},
            "gateway": {"kind": kind, "policy": policy},
            "generate": {"max_tokens": 64, "on_changed_request": "keep", "on_length": "keep", "max_pieces": 4,
                         "repetitions": 1,
                         "seed": 0, "temperature": None, "tokens_per_dataset": None, "top_p": None},
            "target": {"name": "target", "openrouter_model": "maker/target", "thinking": None},
        }  # fmt: skip
        self.runtime: dict[str, Any] = {
            "run": "test", "budget_usd": 5.0, "reserve": "worst", "dataset_budgets_usd": {}, "in_flight": 16,
            "slots_per_client": 4, "max_attempts": 3,
            "max_reject_share": 0.9, "timeout_s": 10.0, "deadline_s": 30.0, "patience_s": 10.0, "on_exhausted": "stop",
            "quality": {"markers": True, "loop_window": 4000, "loop_share": 0.1, "missing_reasoning": True, "tries": 2},
            "gateway": {"kind": kind, "base_url": double.url if double else None, "api_key_file": str(key_file),
                        "account": "default", "account_budget_usd": None, "usage_lag_s": 900.0, "width": 4,
                        "policy": policy, "stream": None, "allow_byok": False},
        }  # fmt: skip
        self.rows = [prompt(i) for i in range(rows)]
        self.vault = folder / "vault"

    @property
    def providers(self) -> Path:
        return self.folder / "providers.json"

    @property
    def output(self) -> Path:
        return self.folder / "generated" / f"{self.name}.jsonl.zst"

    @property
    def summary(self) -> Path:
        return self.folder / "generated" / f"{self.name}.summary.json"

    def arguments(self) -> list[str]:
        """Write the inputs that are missing; the command line of the job."""
        prompts = self.folder / f"prompts-{self.name}.jsonl.zst"
        write_jsonl_zst(prompts, self.rows)
        if not self.providers.exists():
            made = cli.main(["providers", "--slice", canonical_json(self.cut), "--runtime",
                             canonical_json(self.runtime), "--output", str(self.providers)])  # fmt: skip
            assert made == 0
        return ["generate", "--slice", canonical_json(self.cut), "--runtime", canonical_json(self.runtime),
                "--providers", str(self.providers), "--prompts", str(prompts), "--vault", str(self.vault),
                "--output", str(self.output), "--summary", str(self.summary)]  # fmt: skip

    def run(self) -> int:
        """Run in this process; the exit code."""
        return cli.main(self.arguments())

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Run in a process of its own."""
        import os

        return subprocess.Popen([sys.executable, "-m", "eyrie", *self.arguments()], stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **environment})  # fmt: skip

    def read(self) -> list[dict[str, Any]]:
        return list(read_jsonl_zst(self.output))

    def facts(self) -> dict[str, Any]:
        return json.loads(self.summary.read_text())

    def open_vault(self) -> Vault:
        return Vault(self.vault)


def prompt(index: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    """A prompt row."""
    return {"id": f"row-{index:04d}", "index": index, "source": {"adapter": "test", "row": index},
            "messages": [{"role": "user", "content": text or f"question {index}"}], **more}  # fmt: skip
