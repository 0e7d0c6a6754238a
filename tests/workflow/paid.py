"""The seeds' run in small: `experiment=kimi_k2_5` against the double, with rows of the real shapes from files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway_double import Double
from tests.gateway_double.script import KIMI
from tests.workflow.conftest import ROOT, SNAKEMAKE, clean_environment, kill_session

KEY = "sk-" + "or-v1-" + "canary9876543210fedcba9876543210"
ROWS = {"B1_glaive": 24, "B3_magicoder": 6, "B6_ultrachat": 20}
# Answers take about a tenth of a second: the endpoints' own speeds on a clock that runs 30 times as fast.
SCRIPT: dict[str, Any] = {**KIMI, "models": 3, "tokens": [40, 100], "clock": 30.0}


def write_sources(folder: Path) -> None:
    """One file of rows per dataset, in the shape that its hub repository has."""
    folder.mkdir(parents=True)
    weather = {"name": "weather", "description": "Weather of a city", "parameters": {"type": "object"}}
    system = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    glaive = [
        {"system": system + json.dumps(weather),
         "chat": f"USER: TOOL weather in city {i}, please\n\n\nASSISTANT: <functioncall> "
                 '{"name": "weather", "arguments": \'{"city": "x"}\'} <|endoftext|>\n\n\n'
                 f'FUNCTION RESPONSE: {{"sky": "clear {i}"}}\n\n\nASSISTANT: It is clear. <|endoftext|>'}
        for i in range(40)
    ]  # fmt: skip
    magicoder = [
        {"lang": "python", "raw_index": i, "index": i, "seed": "x", "openai_fingerprint": "f",
         "problem": f"Write function number {i}.", "solution": "pass"}
        for i in range(40)
    ]  # fmt: skip
    chat = [
        {"prompt": f"Tell me of thing {i}.", "prompt_id": f"p{i}",
         "messages": [{"role": "user", "content": f"Tell me of thing {i}."}, {"role": "assistant", "content": "No."},
                      {"role": "user", "content": f"More of {i}, please."}, {"role": "assistant", "content": "No."}]}
        for i in range(40)
    ]  # fmt: skip
    for name, rows in {"B1_glaive": glaive, "B3_magicoder": magicoder, "B6_ultrachat": chat}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class PaidProject:
    """A folder in which `snakemake generate` buys from `double`. The key lies in a file outside of it."""

    folder: Path
    double: Double
    key_file: Path

    def settings(self, *more: str) -> list[str]:
        given = [
            f"gateway.base_url={self.double.url}", f"gateway.api_key_file={self.key_file}",
            f"dataset=[{','.join(ROWS)}]", "generate.max_tokens=100", "generate.tokens_per_dataset=null",
            "generate.in_flight=8", "generate.patience_s=60",
        ]  # fmt: skip
        for name, rows in ROWS.items():
            given += [f"datasets.{name}.source=files:sources/{name}.jsonl", f"datasets.{name}.rows={rows}"]
        return [*given, *more]

    def command(self, *arguments: str, settings: tuple[str, ...] = ()) -> list[str]:
        return [
            SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.folder), "--cores", "8",
            *arguments, "--config", "experiment=kimi_k2_5", f"set=[{','.join(self.settings(*settings))}]",
        ]  # fmt: skip

    def start(self, *arguments: str, settings: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start in a session of its own, as a terminal would."""
        return subprocess.Popen(
            self.command(*arguments, settings=settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True, env=clean_environment(),
        )  # fmt: skip

    def run(self, *arguments: str, settings: tuple[str, ...] = ()) -> tuple[int, str]:
        """(exit code, stdout and stderr)."""
        process = self.start(*arguments, settings=settings)
        text, _ = process.communicate(timeout=300)
        return process.returncode, text

    def interrupted(self, bills: int, *signals: int) -> tuple[int, str]:
        """Start, wait until the double has billed `bills` more answers, then send each signal to the whole group."""
        wanted = self.double.brief()["bills"] + bills
        process = self.start("generate")
        while self.double.brief()["bills"] < wanted and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, process.communicate()[0]
        for number in signals:
            if number == signal.SIGKILL:
                kill_session(process.pid)
            else:
                os.killpg(process.pid, number)
            time.sleep(0.3)
        text, _ = process.communicate(timeout=120)
        return process.returncode, text

    def pending(self, settings: tuple[str, ...] = ()) -> set[str]:
        """Datasets whose answers a dry run would buy."""
        code, text = self.run("-n", "generate", settings=settings)
        assert code == 0, text
        jobs = re.findall(r"rule generate_dataset:\n(?:    .*\n)*?    wildcards: dataset=(\w+)\n", text)
        return set(jobs)

    def generated(self) -> dict[str, bytes]:
        """The files of answers and their summaries that are there."""
        folder = self.folder / "results/kimi_k2_5/generated"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if not path.name.startswith(".")}

    def log(self, dataset: str) -> str:
        return (self.folder / f"results/kimi_k2_5/logs/generate/{dataset}.log").read_text()
