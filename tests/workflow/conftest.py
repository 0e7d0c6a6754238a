"""Real Snakemake runs of the repository's own Snakefile, in a working directory of their own."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))

# The laptop run with the real model, small enough for a test.
TINY = (
    "dataset=[demo_code,demo_oss]", "datasets.demo_code.rows=6", "datasets.demo_oss.rows=6", "corpus.holdout=0.3",
    "generate.max_tokens=24", "drafter.draft_vocab_size=1024", "train.steps=12", "train.batch_tokens=32",
    "train.checkpoint_every=3", "train.evaluate_every=6", "evaluate.rows=2", "evaluate.max_new_tokens=16",
    "evaluate.benchmarks.humaneval.rows=2", "run=tiny",
)  # fmt: skip


@dataclass
class Project:
    """A folder in which `snakemake` runs."""

    folder: Path
    settings: tuple[str, ...] = TINY

    def command(self, *arguments: str, settings: tuple[str, ...] = ()) -> list[str]:
        changes = ",".join((*self.settings, *settings))
        return [
            SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.folder), *arguments,
            "--cores", "2", "--config", f"set=[{changes}]",
        ]  # fmt: skip

    def snakemake(self, *arguments: str, settings: tuple[str, ...] = (), check: bool = True) -> str:
        """Run to the end; returns stdout and stderr together."""
        return self.call(self.command(*arguments, settings=settings), check=check)

    def eyrie(self, *arguments: str) -> str:
        """Run an `eyrie` command in the folder."""
        return self.call([sys.executable, "-m", "eyrie", *arguments, "--conf-dir", str(ROOT / "conf")])

    def call(self, command: list[str], check: bool = True) -> str:
        """Run any command in the folder; returns stdout and stderr together."""
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder,
            text=True, stdin=subprocess.DEVNULL, env=clean_environment(),
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def pending(self, *arguments: str, settings: tuple[str, ...] = ()) -> set[str]:
        """Names of the rules that a dry run would execute (`all` left out)."""
        text = self.snakemake("-n", *arguments, settings=settings)
        lines = [line.split() for line in text.splitlines()]
        return {words[1].rstrip(":") for words in lines if words[:1] in (["rule"], ["localrule"])} - {"all"}

    def kill_during(self, log: str, *, after: str, delay: float) -> bool:
        """Start the run, wait until `log` holds `after`, wait `delay` seconds more, then kill -9 every process of it.

        Returns whether the run was still going when it was killed.
        """
        path = self.folder / "results" / "tiny" / "logs" / log
        process = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            start_new_session=True, env=clean_environment(),
        )  # fmt: skip
        deadline = time.monotonic() + 240
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if path.exists() and after in path.read_text(errors="replace"):
                    time.sleep(delay)
                    break
                time.sleep(0.05)
            return process.poll() is None
        finally:
            kill_session(process.pid)
            process.wait()

    def unlock(self) -> None:
        self.snakemake("--unlock")

    def outputs(self) -> dict[str, str]:
        """Hash of every file of the run but its logs."""
        run = self.folder / "results" / "tiny"
        found = {}
        for path in sorted(run.rglob("*")):
            name = str(path.relative_to(run))
            if not path.is_file() or name.startswith("logs/") or path.name.startswith("."):
                continue
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


def clean_environment() -> dict[str, str]:
    """This environment without a key or a proxy, so that a run that needs one must say so."""
    return {k: v for k, v in os.environ.items() if "KEY" not in k.upper() and "PROXY" not in k.upper()}


def kill_session(leader: int) -> None:
    """SIGKILL every process of the session that `leader` started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                session = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3])
            except (OSError, IndexError):
                continue
            if session == leader:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture(scope="session")
def prepared_targets() -> Path:
    """The checkout's own store of prepared targets, so that tests and the laptop run convert the model once."""
    folder = ROOT / "store" / "targets"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory, prepared_targets) -> Project:
    folder = tmp_path_factory.mktemp("project")
    (folder / "store").mkdir()
    (folder / "store" / "targets").symlink_to(prepared_targets)
    return Project(folder)
