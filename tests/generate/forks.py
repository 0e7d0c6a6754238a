"""Generate jobs as processes that start in milliseconds: forked from one that has imported everything already.

Run as `python -m tests.generate.forks` it reads requests from stdin, one JSON object a line, and answers each with a
line: `{"argv": [...], "stderr": PATH}` forks a process that runs `eyrie ARGV...` in a session of its own and gives its
pid; `{"wait": PID}` gives its exit code (negative: the signal). The processes are real: they can be killed, and what
they leave behind is what a killed `eyrie` leaves. Only the interpreter's start is saved, 0.6 s of CPU a life.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Forks:
    """The forking process, as a test sees it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.generate.forks"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True, bufsize=1,
        )  # fmt: skip
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdout.readline()  # it has imported everything

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)

    def _ask(self, **request: Any) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        return int(self._server.stdout.readline())

    def start(self, argv: list[str], stderr: Path) -> int:
        """Pid of a process that runs `eyrie ARGV...`."""
        return self._ask(argv=argv, stderr=str(stderr))

    def wait(self, pid: int) -> int:
        """Its exit code once it has ended; negative when a signal ended it."""
        return self._ask(wait=pid)


def main() -> None:
    import eyrie.generate.command  # noqa: F401
    from eyrie import cli

    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                os.dup2(os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                code = cli.main(request["argv"])
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
