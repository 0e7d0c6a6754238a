"""Run one server for as long as another process lives: `python keeper.py LOG GRACE_SECONDS COMMAND...`.

A program of its own, on the standard library alone: it stands between a job and the server that the job starts.
An inference server is a tree of processes that hold a GPU each; when the job dies, by `kill -9` too, all of them must
go. The job holds the other end of this process's standard input: its end is the job's end. Then, or on SIGTERM, the
server's process group gets SIGTERM, and after GRACE_SECONDS everything below this process gets SIGKILL, processes that
left the group included (this process is their subreaper). The kernel kills the server when this process itself is
killed. Output of the server goes to LOG. The exit code is the server's (128 + signal when one ended it, 127 when it
could not be started).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_S = 0.2


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _die_with(parent: int) -> None:
    """In the child, before exec: be killed with `parent`, also when it is gone already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Pids of all processes below `root` that still run, by the kernel's table of parents.

    A process whose first thread has ended shows as a zombie while its other threads run and still are the parents of
    its children: zombies are walked through, not listed."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        if fields[0] in b"ZX":
            ended.add(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += [pid for pid in below if pid not in ended]
        todo += below
    return found


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class Keeper:
    """The running server and what it left behind."""

    def __init__(self, command: list[str], log_path: str, grace_s: float) -> None:
        self.grace_s = grace_s
        self.status: int | None = None
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        me = os.getpid()
        with open(log_path, "ab") as log:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0,
                preexec_fn=lambda: _die_with(me),
            )  # fmt: skip

    def reap(self) -> None:
        """Collect ended children, adopted ones too; note the server's own status."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def wait(self) -> None:
        """Return when the server has ended, or the job has."""
        while self.status is None:
            if select.select([0], [], [], TICK_S)[0] and not os.read(0, 1024):
                return
            self.reap()

    def end(self) -> int:
        """Stop whatever still runs below this process; the server's exit code."""
        if self.status is None:
            try:
                os.killpg(self.child.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has just ended
        number, deadline = signal.SIGTERM, time.monotonic() + self.grace_s
        while left := descendants(os.getpid()):
            self.reap()
            if self.status is not None or time.monotonic() >= deadline:
                number = signal.SIGKILL  # what a dead server leaves behind serves nobody
            if number is signal.SIGKILL:
                _send(left, number)
            time.sleep(TICK_S / 4)
        self.reap()
        return 0 if self.status is None else self.status if self.status >= 0 else 128 - self.status


def main(arguments: list[str]) -> int:
    """Keep the server; 127 when it cannot be started, with the reason in its log."""
    log_path, grace, *command = arguments
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    keeper = None
    try:
        keeper = Keeper(command, log_path, float(grace))
        keeper.wait()
    except OSError as error:
        with open(log_path, "a", encoding="utf-8") as log:
            log.write(f"{command[0]}: cannot be started: {error.strerror}\n")
        return 127
    finally:
        if keeper is not None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            code = keeper.end()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
