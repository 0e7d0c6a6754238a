"""Who a job is, so that a later job can tell whether it still lives: machine, boot, pid and the process's start."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

STALE_S = 60.0  # a job on another machine is dead after so many seconds without a heartbeat


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

    def alive(self, heartbeat: float, now: float, here: Process) -> bool:
        """Whether this process runs, asked from `here`. Times in seconds since 1970.

        On the same machine the process table decides, so a killed job is known dead at once and a stopped one is
        not robbed of its journal entries; elsewhere the heartbeat does.
        """
        if self.machine != here.machine or not here.started:
            return now - heartbeat < STALE_S
        return self.boot == here.boot and bool(self.started) and _started(self.pid) == self.started
