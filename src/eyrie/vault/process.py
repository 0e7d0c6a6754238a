"""Who a job is, so that a later job can tell whether it still lives: machine, boot, pid and the process's start."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

STALE_S = 60.0  # a job that no process table here knows is dead after so many seconds without a heartbeat


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); empty when it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(")") + 2 :].split()
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class Beat:
    """One moment on two clocks, in seconds: `wall` since 1970, `monotonic` since the boot (nobody sets that one)."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> Beat:
        return cls(time.time(), time.monotonic())


@dataclass(frozen=True)
class Process:
    """One process of one boot of one machine; equal pids of different boots are different processes."""

    machine: str
    boot: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Process:
        """This process."""
        try:
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError:
            namespace = ""
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
        return cls(f"{socket.gethostname()} {namespace}", boot, os.getpid(), _started(os.getpid()))

    def silent_s(self, last: Beat, now: Beat, here: Process) -> float:
        """Seconds since this process's heartbeat, asked from `here`. Within one boot a clock that is set does not
        matter; across boots only the wall clock is left, and a heartbeat in the future is as old as it is far."""
        same_boot = bool(self.boot) and self.boot == here.boot
        return now.monotonic - last.monotonic if same_boot else abs(now.wall - last.wall)

    def alive(self, last: Beat, now: Beat, here: Process) -> bool:
        """Whether this process runs, asked from `here`.

        On the same machine the process table decides, so a killed job is known dead at once and a stopped one is
        not robbed of its journal entries; in another container, or elsewhere, the heartbeat does.
        """
        if self.machine == here.machine and here.started:
            return self.boot == here.boot and bool(self.started) and _started(self.pid) == self.started
        return self.silent_s(last, now, here) < STALE_S
