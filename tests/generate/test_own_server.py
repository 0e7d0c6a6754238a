"""The generator against a server of one's own, running already or started by the job: no key, no price, exact ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyrie.errors import ExitCode
from eyrie.gateway import fetch
from eyrie.target.receipt import TargetReceipt
from tests.gateway.test_launch import COMMAND, ROOT, alive, pids, wait_until_gone
from tests.generate.job import Job, prompt


@contextmanager
def running(*options: str) -> Iterator[str]:
    """A server that somebody started; its base URL."""
    command = [*COMMAND, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "/models/target", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    assert process.stdout is not None
    workers: list[int] = []
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield f"http://127.0.0.1:{json.loads(line)['port']}/v1"
                return
        raise AssertionError("the server did not start")
    finally:
        workers = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        for pid in (process.pid, *workers):
            os.kill(pid, 9)
        process.wait()
        process.stdout.close()


def make(folder: Path, url: str | None, rows: int = 6, **gateway: Any) -> Job:
    """A job for a server at `url` (None: one that it starts itself)."""
    job = Job(folder, None, rows=rows, kind="openai")
    job.runtime["budget_usd"] = 0.0
    job.runtime["gateway"].update(base_url=url, api_key_file=None, **gateway)
    return job


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_answers_cost_nothing_and_keep_reasoning_and_exact_token_ids(tmp_path: Path, engine: str) -> None:
    with running("--engine", engine) as url:
        job = make(tmp_path, url)
        assert job.run() == 0
        seen = httpx.get(url.removesuffix("/v1") + "/control", trust_env=False).json()
    assert seen["requests"] == 6 and "authorization" not in seen["headers"]
    assert seen["body"]["model"] == "/models/target"  # the server's own name of the one model it has
    row = job.read()[0]
    assert row["messages"][1]["content"] == "it is so"
    assert row["messages"][1]["reasoning" if engine == "vllm" else "reasoning_content"] == "let me see"
    answer = row["answers"][0]
    assert answer["token_ids"] == [2, 2, 2] and answer["prompt_token_ids"] == [8, 1]
    assert answer["cost_microusd"] == 0 and answer["usage"]["completion_tokens"] == 3
    assert job.facts()["dollars"]["billed"] == "0" and job.facts()["gateway"] == "openai"


def test_an_older_sglang_gives_the_prompts_ids_alone(tmp_path: Path) -> None:
    with running("--engine", "sglang-0.5.14") as url:
        job = make(tmp_path, url, rows=1)
        assert job.run() == 0
    answer = job.read()[0]["answers"][0]
    assert answer["prompt_token_ids"] == [8, 1] and "token_ids" not in answer


def test_a_server_that_refuses_the_option_is_not_asked_for_ids(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with running("--engine", "strict") as url:
        job = make(tmp_path / "asked", url, rows=1)
        assert job.run() == ExitCode.USAGE
        assert "set gateway.ask_token_ids=false" in capsys.readouterr().err
        job = make(tmp_path / "not", url, rows=1, ask_token_ids=False)
        assert job.run() == 0
    assert "prompt_token_ids" not in job.read()[0]["answers"][0]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_prompt_beyond_the_context_is_that_rows_fault_alone(tmp_path: Path, engine: str) -> None:
    with running("--engine", engine) as url:
        job = make(tmp_path, url)
        job.rows[2] = prompt(2, "word " * 190)
        assert job.run() == 0
        seen = httpx.get(url.removesuffix("/v1") + "/control", trust_env=False).json()
    assert len(job.read()) == 5 and seen["requests"] == 6  # asked once: no attempt will help
    assert job.facts()["rows"]["rejected"] == {"context_length": 1}


def test_answers_longer_than_the_context_are_told_before_the_first_request(tmp_path: Path, capsys) -> None:
    with running() as url:
        job = make(tmp_path, url)
        job.arguments()
        job.cut["generate"]["max_tokens"] = 200
        providers = json.loads(job.providers.read_text())
        providers["accepted"][0]["max_completion_tokens"] = None
        job.providers.write_text(json.dumps(providers))
        assert job.run() == ExitCode.USAGE
    assert "200 tokens of context" in capsys.readouterr().err


def test_a_server_that_is_not_up_is_said_at_once(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TRIES", 1)
    with running() as url:
        job = make(tmp_path, url)
        job.arguments()
    assert job.run() == ExitCode.MISSING
    said = capsys.readouterr().err
    assert f"{url}/models" in said and "no server is up there" in said
    job.providers.unlink()
    with pytest.raises(AssertionError):  # `eyrie providers` says the same
        job.arguments()
    assert "eyrie providers: error" in capsys.readouterr().err


def test_a_server_that_goes_away_ends_the_job_after_its_patience(tmp_path: Path, capsys) -> None:
    with running("--die-after", "3") as url:
        job = make(tmp_path, url, rows=30)
        job.runtime.update(in_flight=2, patience_s=1.0)
        assert job.run() == ExitCode.INCOMPLETE
    said = capsys.readouterr().err
    assert "server_not_up" in said and "rows are still open" in said
    with running() as url:
        job.runtime["gateway"]["base_url"] = url
        assert job.run() == 0 and len(job.read()) == 30


# A server that the job starts ------------------------------------------------------------------------------------


def starting(folder: Path, rows: int = 6, **args: Any) -> Job:
    """A job that starts its server, with the command line that its rule gives it."""
    launch = {"engine": "sglang", "command": COMMAND, "ready_s": 120.0, "args": {"pids": str(folder / "pids"), **args}}
    job = make(folder, None, rows=rows, launch=launch)
    target = folder / "target.json"
    TargetReceipt("target", str(folder), "0123456789abcdef", {}, "LlamaForCausalLM", 2, 8, 16, 64).write(target)
    plain = job.arguments
    job.arguments = lambda: [*plain(), "--target", str(target), "--server-log", str(folder / "server.log")]  # type: ignore[method-assign]
    return job


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_job_starts_its_server_and_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = starting(tmp_path)
    assert not job.providers.exists()
    assert job.run() == 0
    assert len(job.read()) == 6 and not [pid for pid in pids(tmp_path / "pids") if alive(pid)]
    assert f"--model-path {tmp_path} --served-model-name target" in (tmp_path / "server.log").read_text()
    providers = json.loads(job.providers.read_text())
    assert providers["model"] == "target" and providers["accepted"][0]["completion_price"] == "0"
    (tmp_path / "pids").unlink()
    job.output.unlink()
    assert job.run() == 0 and job.output.exists()
    assert not (tmp_path / "pids").exists()  # the vault had everything: no server was started
    assert capsys.readouterr().err.count("gateway: starting sglang") == 1


def test_a_server_that_dies_at_start_ends_the_job_with_its_last_words(tmp_path: Path, capsys) -> None:
    job = starting(tmp_path, behave="die")
    assert job.run() == ExitCode.MISSING
    said = capsys.readouterr().err
    assert "the weights do not fit" in said and str(tmp_path / "server.log") in said and "Traceback" not in said


def test_a_server_that_dies_on_the_way_stops_the_job_and_the_next_one_goes_on(tmp_path: Path, capsys) -> None:
    job = starting(tmp_path, rows=40, die_after=10)
    job.runtime["in_flight"] = 4
    began = time.monotonic()
    assert job.run() == ExitCode.INCOMPLETE
    assert time.monotonic() - began < job.runtime["patience_s"] + 60
    said = capsys.readouterr().err
    assert "exit code 9" in said and "out of memory" in said
    del job.runtime["gateway"]["launch"]["args"]["die_after"]
    assert job.run() == 0 and len(job.read()) == 40


def test_kill_nine_of_the_job_leaves_no_process_of_its_server(tmp_path: Path) -> None:
    job = starting(tmp_path, rows=200, latency_s=0.2)
    command = [sys.executable, "-m", "eyrie", *job.arguments()]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT)
    processes = pids(tmp_path / "pids")
    assert all(map(alive, processes))
    process.kill()
    process.wait()
    wait_until_gone(processes)


def test_the_weights_that_a_job_serves_are_part_of_the_models_identity(tmp_path: Path) -> None:
    job = starting(tmp_path)
    assert job.run() == 0
    with job.open_vault() as vault:
        assert len(vault.index("target@0123456789abcdef", "demo")) == 6 and not vault.index("target", "demo")
