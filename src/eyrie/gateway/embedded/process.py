"""Start and stop the embedded server around the job that needs it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from eyrie.errors import ExitCode, EyrieError
from eyrie.gateway import key

START_SECONDS = 60.0
STOP_SECONDS = 15.0


@contextlib.contextmanager
def serve(
    target: str | os.PathLike[str],
    *,
    width: int = 32,
    threads: int | None = None,
    log_path: str | os.PathLike[str] | None = None,
    catalogue_only: bool = False,
) -> Iterator[str]:
    """Run `eyrie gateway` for the target receipt at `target`; yields its base URL (http://127.0.0.1:PORT/api/v1).

    The child ends with this context, and also when this process dies in whatever way, since it watches a pipe that
    only this process holds. It has a session of its own: a Ctrl-C meant for the job does not cut the answers that
    the job still waits for. Its stderr goes to `log_path`, else to this process's own.

    Raises EyrieError with the child's own reason and exit code when it cannot start.
    """
    command = [
        sys.executable, "-m", "eyrie", "gateway", "--target", os.fspath(target), "--width", str(width),
        "--until-stdin-closes",
    ]  # fmt: skip
    if threads is not None:
        command += ["--threads", str(threads)]
    if catalogue_only:
        command.append("--catalogue-only")
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | None = None
        if log_path is not None:
            Path(log_path).parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(open(log_path, "ab"))
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != key.VARIABLE},
        )  # fmt: skip
        stack.callback(_stop, child)
        yield _base_url(child, log_path)


def _base_url(child: subprocess.Popen[bytes], log_path: str | os.PathLike[str] | None) -> str:
    line = _first_line(child)
    try:
        ready = json.loads(line)
    except ValueError:
        where = f"; see {log_path}" if log_path is not None else ""
        said = f"it said {line[:200]!r}" if line else f"exit code {child.poll()}"
        raise EyrieError(f"the embedded gateway did not start ({said}){where}") from None
    if "error" in ready:
        raise EyrieError(f"embedded gateway: {ready['error']}", code=ExitCode(ready["code"]))
    return ready["base_url"]


def _first_line(child: subprocess.Popen[bytes]) -> bytes:
    """What the child prints first; what there is of it when it ends or START_SECONDS pass."""
    assert child.stdout is not None
    handle, line = child.stdout.fileno(), b""
    deadline = time.monotonic() + START_SECONDS
    while not line.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
        if select.select([handle], [], [], left)[0]:
            if not (piece := os.read(handle, 4096)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(STOP_SECONDS)
                break
            line += piece
    return line


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Close the child's stdin, which asks it to end; insist after STOP_SECONDS."""
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    for insist in (child.terminate, child.kill):
        try:
            child.wait(STOP_SECONDS)
            break
        except subprocess.TimeoutExpired:
            insist()
    child.wait()
    child.stdout.close()
