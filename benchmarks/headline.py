"""The paid run at its full size against a scripted OpenRouter on a scaled clock: simulated minutes, and dollars.

  python benchmarks/headline.py                      6 datasets, 42M output tokens, 2000 in flight
  python benchmarks/headline.py --share 0.1          a tenth of the slots and of the tokens: the same minutes

Real are: the `eyrie generate` jobs (a process per dataset, as Snakemake starts them), their vault and its commits, HTTP
over loopback, nine endpoints with a price, a speed and a limit of concurrent requests each, faults in 2 % of the
requests, generation records and key figures that lag. Scaled is time: the double answers `--clock` times as fast, and
every timer of the jobs (ramp, cool-down, heartbeat, backoff, timeout) runs on a trio clock of the same rate. Not real
is an answer's text: it is billed for all its tokens but carries some words of them. The processes' own work is not
scaled, so each second of it counts as `--clock` simulated ones: a busy or slow machine makes the minutes longer, never
shorter. Lower `--clock` or `--share` where the CPU share that is printed is near the machine's.

ideal  the endpoints' own seconds for the same answers, over the slots: no gap, no ramp, no tail, no fault
list   the same answers in the same order, each in the first free slot: what is left when nobody knows beforehand which
       answers will be long
peer   the run to beat: 42M output tokens in 33 minutes for $86, 2000 in flight
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

DATASETS = ("B1_glaive", "B2_opencodeinstruct", "B3_magicoder", "B4_mixture_of_thoughts", "B6_ultrachat", "B7_sharegpt")
TOKENS = 7_000_000  # output tokens of a dataset
ANSWER = {"median": 1400, "p99": 6500}  # output tokens of an answer, log-normal: mean 1740
SLOTS = 2000
FAULTS = {"502": 0.005, "429": 0.003, "503": 0.002, "inband": 0.004, "empty": 0.002, "inband_partial": 0.001,
          "cut": 0.001, "drop": 0.001, "no_usage": 0.001}  # fmt: skip
PEER = {"tokens": 42_000_000, "minutes": 33.0, "dollars": 86.0}


def run_job(clock: float, arguments: list[str]) -> int:
    """One generate job in this process, with trio's clock running `clock` times as fast."""
    import functools

    import trio

    from eyrie import cli

    class Scaled(trio.abc.Clock):
        def start_clock(self) -> None:
            self._zero = time.perf_counter()

        def current_time(self) -> float:
            return 1e6 + (time.perf_counter() - self._zero) * clock

        def deadline_to_sleep_time(self, deadline: float) -> float:
            return (deadline - self.current_time()) / clock

    trio.run = functools.partial(trio.run, clock=Scaled())
    return cli.main(arguments)


def configuration(url: str, key_file: Path, share: float, sort: str) -> dict[str, Any]:
    """The seeds' run as a user would start it."""
    from eyrie.config import compose

    return compose(ROOT / "conf", [
        "experiment=kimi_k2_5", f"dataset=[{','.join(DATASETS)}]", f"gateway.base_url={url}",
        f"gateway.api_key_file={key_file}", f"generate.tokens_per_dataset={round(TOKENS * share)}",
        f"generate.in_flight={max(1, round(SLOTS * share))}", f"generate.budget_usd={100 * share:.6f}",
        f"gateway.sort={sort}",
    ])  # fmt: skip


def prompts(folder: Path, dataset: str, share: float) -> Path:
    """Enough prompts of a few hundred tokens; one in four of them long."""
    from eyrie.files import write_jsonl_zst

    path = folder / f"{dataset}.prompts.jsonl.zst"
    rows = (
        {"id": f"{dataset}-{i}", "index": i, "source": {},
         "messages": [{"role": "user", "content": f"{dataset}, question {i}. " + "Mind the details. " * (20 + i % 80)}]}
        for i in range(round(6000 * share) + 50)
    )  # fmt: skip
    write_jsonl_zst(path, rows)
    return path


def ideal_minutes(ledger: list[dict[str, Any]], slots: int) -> tuple[float, float]:
    """(minutes that the endpoints' own seconds fill in `slots`, minutes of the same answers one after another, each in
    the first slot that is free, in the order in which they were asked for)."""
    free = [0.0] * slots
    ends = 0.0
    for entry in sorted(ledger, key=lambda e: e["at"] - e["seconds"]):
        begins = heapq.heappop(free)
        heapq.heappush(free, begins + entry["seconds"])
        ends = max(ends, begins + entry["seconds"])
    return sum(entry["seconds"] for entry in ledger) / slots / 60, ends / 60


def measure(share: float, clock: float, sort: str, folder: Path) -> dict[str, Any]:
    """Run it; the figures."""
    from tests.gateway_double import Double
    from tests.gateway_double.script import KIMI, KIMI_ENDPOINTS

    from eyrie.config import runtime, stage_slice
    from eyrie.vault import Vault

    limits = [
        {**e, "double": {**e["double"], "concurrency": max(1, round(e["double"]["concurrency"] * share))}}
        for e in KIMI_ENDPOINTS
    ]
    script = {**KIMI, "endpoints": [*limits, *KIMI["endpoints"][len(limits) :]], "tokens": ANSWER, "words": 60,
              "clock": clock, "rates": FAULTS, "retry_after": 2.0, "generation_lag": 5.0,
              "key_usage_lag": 15.0}  # fmt: skip
    key_file = folder / "key.txt"
    key_file.write_text("sk-" + "or-v1-" + "0" * 32 + "\n")
    with Double(**script) as double:
        config = configuration(double.url, key_file, share, sort)
        shared = ["--runtime", runtime(config)]
        providers = folder / "providers.json"
        eyrie = [sys.executable, "-m", "eyrie"]
        listed = ["providers", "--slice", stage_slice(config, "providers"), *shared, "--output", str(providers)]
        subprocess.run([*eyrie, *listed], check=True)
        sources = {name: prompts(folder, name, share) for name in DATASETS}
        began = time.perf_counter()
        jobs = []
        for name in DATASETS:
            arguments = [
                "--log", str(folder / f"{name}.log"), "generate", "--slice", stage_slice(config, "generate", name),
                *shared, "--providers", str(providers), "--prompts", str(sources[name]), "--vault",
                str(folder / "vault"), "--output", str(folder / f"{name}.jsonl.zst"), "--summary",
                str(folder / f"{name}.summary.json"),
            ]  # fmt: skip
            command = [sys.executable, __file__, "--job", json.dumps(arguments), "--clock", str(clock)]
            jobs.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT))
        busy: list[int] = []
        try:
            while any(job.poll() is None for job in jobs):
                time.sleep(1.0)
                busy.append(double.brief()["in_flight"])
        finally:
            for job in jobs:
                job.kill()  # those that still run when this script is interrupted
        seconds = time.perf_counter() - began
        codes = {name: job.returncode for name, job in zip(DATASETS, jobs, strict=True)}
        if any(codes.values()):
            tails = {name: (folder / f"{name}.log").read_text()[-500:] for name, code in codes.items() if code}
            sys.exit(f"jobs failed: {tails}")
        state = double.brief()
        ledger = double.ledger
        paid = [entry for entry in ledger if Decimal(entry["cost"])]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(f"/proc/{double.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        summaries = [json.loads((folder / f"{name}.summary.json").read_text()) for name in DATASETS]
        with Vault(folder / "vault") as vault:
            books, problems = vault.committed(), vault.check()
            billed = sum((Decimal(r[0]) for r in vault._rows("SELECT billed FROM journal WHERE cost > 0")), Decimal(0))
        return {
            "minutes": seconds * clock / 60, "wall": seconds, "ideal": ideal_minutes(ledger, round(SLOTS * share)),
            "tokens": sum(s["tokens"]["completion"] for s in summaries), "billed": Decimal(state["billed"]),
            "booked": billed, "books": books, "problems": problems, "state": state,
            "duplicates": len(paid) - len({e["digest"] for e in paid}), "busy": busy,
            "client_cpu": used.ru_utime + used.ru_stime,
            "double_cpu": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        }  # fmt: skip


def report(found: dict[str, Any], share: float, clock: float) -> None:
    """Print it beside the peer's figures."""
    state, requests = found["state"], found["state"]["requests"]
    minutes, (ideal, listed), tokens = found["minutes"], found["ideal"], found["tokens"]
    billed, booked, unknown = found["billed"], found["booked"], found["books"]["unknown"] / 1e6
    faults = sum(state["faults"].values())
    jobs, double = found["client_cpu"], found["double_cpu"]
    lines = [
        f"run       {len(DATASETS)} datasets, {tokens:,} output tokens, {round(SLOTS * share)} slots, clock x{clock:g}",
        f"requests  {requests}, of them {faults} with faults; by status {state['statuses']}",
        f"minutes   {minutes:.1f} simulated ({found['wall']:.0f} s of wall)",
        f"ideal     {ideal:.1f} minutes, ratio {ideal / minutes:.2f}; list {listed:.1f}, ratio {listed / minutes:.2f}",
        f"peer      {PEER['minutes']} minutes for {PEER['tokens']:,} tokens; ratio {minutes / PEER['minutes']:.2f}",
        f"in flight {state['peak']} at most, {sum(found['busy']) / len(found['busy']):.0f} on average",
        f"dollars   billed {billed:.6f}, booked {booked:.6f}, held for unknown {unknown:.6f}; to the cent "
        f"{'equal' if round(billed, 2) == round(booked, 2) else 'NOT EQUAL'}",
        f"per M     {billed * 1_000_000 / tokens:.3f} dollars; peer {PEER['dollars'] / PEER['tokens'] * 1e6:.3f}",
        f"books     billed more than once: {found['duplicates']}; problems: {found['problems'] or 'none'}",
        f"CPU       jobs {jobs:.0f} s, {jobs / requests * 1000:.1f} ms a request; double {double:.0f} s, "
        f"{double / requests * 1000:.1f} ms a request",
    ]
    print("\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=float, default=10.0, help="simulated seconds per second (default 10)")
    parser.add_argument("--share", type=float, default=1.0, help="of the slots and the tokens (default 1: all)")
    parser.add_argument("--sort", choices=("null", "price", "throughput"), default="null", help="gateway.sort")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return run_job(args.clock, json.loads(args.job))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the jobs are ended on the way out
    with tempfile.TemporaryDirectory() as name:
        found = measure(args.share, args.clock, args.sort, Path(name))
    report(found, args.share, args.clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
