"""What a run shows while it runs: a live line that fits the terminal, log lines of one form everywhere else."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from eyrie.generate.progress import Rate, Snapshot, clock, short
from tests.gateway_double import Double
from tests.generate.job import Job

SNAPSHOT = Snapshot(
    "B2_opencodeinstruct", 80.0, 1200, 50000, 2_412_345, 7_000_000, 21234.5, Decimal("4.1234"), 216.0, 640, 1536, 2000,
    "running", 3, {"rate_limited": 12, "timeout": 40},
)  # fmt: skip


def test_the_log_line_says_everything_in_a_fixed_order() -> None:
    assert SNAPSHOT.line() == (
        "B2_opencodeinstruct: 0:01:20 running, 1,200/50,000 rows, 2,412,345/7,000,000 tokens, 21,234 tok/s, $4.1234, "
        "ETA 0:03:36, 640 in flight (limit 1536, leased 2000), 3 rejected, 52 faults (timeout 40, rate_limited 12)"
    )
    quiet = replace(SNAPSHOT, budget=None, cost=None, eta=None, rejected=0, faults={}, state="cooling 3 s").line()
    assert quiet.count(", ") == 9 and "cooling 3 s" in quiet  # no field disappears
    assert (
        "2,412,345 tokens" in quiet and "free" in quiet and "ETA -" in quiet and quiet.endswith("0 rejected, 0 faults")
    )


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40, 20, 8, 1])
def test_the_live_line_never_grows_wider_than_the_terminal(width: int) -> None:
    kept = SNAPSHOT.fitted(width)
    assert len("  ".join(text for text, _ in kept)) <= width
    assert kept[0][0] == "B2_opencodeinstruct" or width < 24
    assert any("34%" in text for text, _ in kept) or width < 3  # the share is the last to go


def test_a_wide_terminal_shows_limiter_and_faults() -> None:
    text = "  ".join(text for text, _ in SNAPSHOT.fitted(300))
    for part in ("34%", "1,200/50,000", "2.41M/7M tok", "21.2k tok/s", "$4.12", "ETA 0:03:36", "640 in flight",
                 "limit 1536 of 2000", "3 rejected", "timeout 40", "rate_limited 12"):  # fmt: skip
        assert part in text


def test_speed_is_that_of_the_last_minute() -> None:
    rate = Rate(0.0)
    for second in range(1, 601):
        slow = rate.at(float(second), second * 1.0)
    assert slow == pytest.approx(1.0)
    for second in range(601, 721):
        fast = rate.at(float(second), 600 + (second - 600) * 50.0)
    assert fast == pytest.approx(50.0)
    assert Rate(5.0).at(5.0, 100) == 0.0  # no time has passed: no speed


def test_times_and_counts_are_short() -> None:
    assert [clock(s) for s in (None, 0, 59.9, 3600, 100_000)] == ["-", "0:00:00", "0:00:59", "1:00:00", "27:46:40"]
    assert [short(n) for n in (0, 950, 12_345, 4_560_000, 2e9)] == ["0", "950", "12.3k", "4.56M", "2G"]


def test_a_job_without_a_terminal_logs_where_it_began_and_where_it_ended(tmp_path: Path) -> None:
    with Double() as double:
        done = subprocess.run(
            [sys.executable, "-m", "eyrie", "--log", str(tmp_path / "log"), *Job(tmp_path, double).arguments()],
            stderr=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    form = (
        r"demo: \d:\d\d:\d\d running, \d+/10 rows, [\d,]+ tokens, [\d,]+ tok/s, \$\d\.\d{4}, ETA \S+, "
        r"\d+ in flight \(limit \d+, leased \d+\), 0 rejected, 0 faults"
    )
    found = [line for line in done.stderr.splitlines() if re.fullmatch(form, line)]
    assert " 0/10 rows" in found[0] and " 10/10 rows" in found[-1]
    assert (tmp_path / "log").read_text() == done.stderr


@pytest.mark.parametrize("columns", [30, 100])
def test_a_job_on_a_terminal_shows_one_live_line_that_leaves_no_trace(tmp_path: Path, columns: int) -> None:
    with Double(latency=[0.6, 1.2]) as double:
        command = [sys.executable, "-m", "eyrie", *Job(tmp_path, double).arguments()]
        ours, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
        process = subprocess.Popen(command, stderr=theirs, stdin=subprocess.DEVNULL, env=environment)
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal is closed
                break
            seen += piece
        os.close(ours)
        assert process.wait(30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    live = [line for line in re.split(r"[\r\n]+", text) if "%" in line]
    assert len(live) >= 2 and all(len(line) < columns for line in live)
    assert b"\x1b[2K" in seen  # drawn over itself
