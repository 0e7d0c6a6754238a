"""Start SGLang or vLLM for one job, wait until it answers, stop it with all its processes."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from eyrie.errors import ExitCode, EyrieError, InputError
from eyrie.gateway import keeper, key

GRACE_S = 15.0  # between SIGTERM and SIGKILL; nothing is under way any more
SAY_EVERY_S = 10.0
POLL_S = 1.0
LOG_LINES = 15  # of a server that failed
# Below the ports that clients are given, so that no connection takes it meanwhile; SGLang adds 10,000 for a second one.
PORTS = range(20_000, 32_000)
PORT_TRIES = 3  # another process may take a free port before the server does

_ENGINES: dict[str, tuple[list[str], list[str]]] = {  # command, how it is told model, name, host and port
    "sglang": (
        [sys.executable, "-m", "sglang.launch_server"],
        ["--model-path", "{path}", "--served-model-name", "{name}", "--host", "127.0.0.1", "--port", "{port}"],
    ),
    "vllm": (
        ["vllm", "serve"],
        ["{path}", "--served-model-name", "{name}", "--host", "127.0.0.1", "--port", "{port}"],
    ),
}
_OURS = {"model-path", "model", "served-model-name", "host", "port", "api-key"}
_TAKEN = ("address already in use", "errno 98")


@dataclass(frozen=True)
class Launch:
    """How to start the server (`gateway.launch`)."""

    engine: str
    command: tuple[str, ...]
    args: Mapping[str, Any]
    ready_s: float

    @classmethod
    def read(cls, value: Mapping[str, Any] | None) -> Launch | None:
        """From the configuration; None when no server is to be started. Raises InputError for an option of ours."""
        if not value or value["engine"] is None:
            return None
        for name in value["args"]:
            if name.replace("_", "-").lstrip("-") in _OURS:
                raise InputError(
                    f"gateway.launch.args.{name}: is set by the job (the server listens on a free port of this machine "
                    "only, serves the target, and needs no key); take it out"
                )
        return cls(value["engine"], tuple(value["command"]), value["args"], float(value["ready_s"]))

    def argv(self, path: str, name: str, port: int) -> list[str]:
        """The server's command line. Of `args`, true is a bare option, false and null are left out, a list gives
        several words."""
        command, ours = _ENGINES[self.engine]
        words = [word.format(path=path, name=name, port=port) for word in ours]
        for option, value in self.args.items():
            if value is None or value is False:
                continue
            words.append("--" + option.lstrip("-").replace("_", "-"))
            words += [] if value is True else [str(v) for v in value] if isinstance(value, list) else [str(value)]
        return [*(self.command or command), *words]


@dataclass
class Server:
    """A running server. `url` is its OpenAI base URL."""

    engine: str
    url: str
    log_path: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    def problem(self) -> str | None:
        """Why it answers no more; None while it lives."""
        code = self.process.poll()
        return None if code is None else f"{self.engine} ended (exit code {code}); {last_lines(self.log_path)}"


def last_lines(path: Path) -> str:
    """The end of a log for a message: its name and its last lines, without anything that looks like a key."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"its log {path} cannot be read ({error.strerror})"
    lines = [line.rstrip()[:240] for line in text.splitlines() if line.strip()][-LOG_LINES:]
    return f"the end of {path}:" + "".join(f"\n  | {key.NO_KEY.redact(line)}" for line in lines or ["(empty)"])


@contextlib.contextmanager
def launched(plan: Launch, path: str, name: str, log_path: Path, say: Callable[[str], None]) -> Iterator[Server]:
    """Start the server for the model in folder `path` under `name`; yields it once it answers.

    It ends with this context and with this process, however that dies (`keeper`). Raises EyrieError (MISSING) with the
    last lines of its log when it dies at start or is not ready in `ready_s`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    for attempt in range(PORT_TRIES):
        started_at = log_path.stat().st_size
        server = _start(plan, path, name, log_path)
        try:
            why = _wait(plan, server, say)
            if why is None:
                say(f"gateway: {plan.engine} answers at {server.url}")
                yield server
                return
        finally:
            _stop(server)
        said = log_path.read_bytes()[started_at:].decode("utf-8", "replace").lower()
        if attempt + 1 == PORT_TRIES or not any(text in said for text in _TAKEN):
            break
        say(f"gateway: the port of {server.url} was taken meanwhile; trying another")
    raise EyrieError(f"gateway.launch: {why}", code=ExitCode.MISSING)


def _start(plan: Launch, path: str, name: str, log_path: Path) -> Server:
    port = _free_port()
    argv = plan.argv(path, name, port)
    with open(log_path, "a", encoding="utf-8") as log:
        log.write(f"$ {shlex.join(argv)}\n")
    process = subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, str(log_path), str(GRACE_S), *argv],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != key.VARIABLE},
    )  # fmt: skip
    return Server(plan.engine, f"http://127.0.0.1:{port}/v1", log_path, process)


def _free_port() -> int:
    """A port that nobody listens on, out of `PORTS` at random so that jobs that start together do not meet."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait(plan: Launch, server: Server, say: Callable[[str], None]) -> str | None:
    """Until the server answers: None; else why it will not."""
    began = said = time.monotonic()
    say(f"gateway: starting {plan.engine} (its log: {server.log_path})")
    with httpx.Client(timeout=30, trust_env=False) as client:
        while time.monotonic() - began < plan.ready_s:
            if (problem := server.problem()) is not None:
                return problem.replace("ended (", "ended before it answered (", 1)
            if _is_ready(client, server.url):
                return None
            if time.monotonic() - said >= SAY_EVERY_S:
                said = time.monotonic()
                tail = last_lines(server.log_path).rsplit("  | ", 1)[-1]
                say(
                    f"gateway: {plan.engine} is starting, {said - began:.0f} s of at most {plan.ready_s:.0f} s; "
                    f"it says: {tail[:160]}"
                )
            time.sleep(POLL_S)
    return (
        f"{plan.engine} did not answer within gateway.launch.ready_s={plan.ready_s:g} s; {last_lines(server.log_path)}"
    )


def _is_ready(client: httpx.Client, url: str) -> bool:
    """Whether it lists its model and calls itself healthy (a server without `/health` need not)."""
    try:
        if client.get(f"{url}/models").status_code != 200:
            return False
        return client.get(url.removesuffix("/v1") + "/health").status_code in (200, 404)
    except httpx.HTTPError:
        return False


def _stop(server: Server) -> None:
    """Ask the keeper to end everything; it insists by itself."""
    assert server.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        server.process.stdin.close()
    try:
        server.process.wait(2 * GRACE_S)
    except subprocess.TimeoutExpired:
        server.process.kill()  # the kernel takes the server with it
        server.process.wait()
