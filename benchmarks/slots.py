"""How well eight generate jobs use the slots that they share: ideal wall time over wall time.

  python benchmarks/slots.py --in-flight 2000 --scale 10

Eight datasets of different sizes, each bought by a real generate job (a process of its own: run loop, vault, leases,
gate, limiter, breakers) from one loopback server whose answers take as long as long answers do: log-normal, median
60 s, 99th percentile 300 s, the same for a row in every run; 2 % of the requests fail (half with a provider's error,
a quarter refused with 429, a quarter cut off). Time is scaled down, and so are the clocks of the run loop that
belong to real time (the limiter's rounds, cool-downs, the connection ramp, back-off); what costs time on the machine
itself is not: durable commits, leases, CPU. So the figure is below what it would be at full scale.

Wall: from the first request to the last answer that the outputs need. Ideal: the same rows on the same slots, each
slot taking the next row (of the datasets in turn) the moment it is free: no ramp, no faults, no commits, and nobody
who waits to know how many rows the token budgets need. It has a tail of its own, the last long answers.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
if __package__ is None or __package__ == "":
    sys.path.insert(0, str(ROOT))

MODEL, TAGS = "maker/target", {"Alpha": "alpha/int4", "Beta": "beta/int4", "Gamma": "gamma/fp8"}
SIZES = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6)  # of a dataset, in shares of the mean
MEDIAN_S, P99_S, FAULTS = 60.0, 300.0, 0.02
SIGMA = math.log(P99_S / MEDIAN_S) / statistics.NormalDist().inv_cdf(0.99)
TOKENS_PER_S = 25
WANTED = 0.97
MARK = re.compile(rb"row (\d+) of set(\d+)")


def seconds_of(dataset: int, row: int) -> float:
    """How long the answer to a row takes, in seconds of real time."""
    return MEDIAN_S * math.exp(SIGMA * random.Random(f"{dataset}/{row}").gauss(0, 1))


def tokens_of(seconds: float) -> int:
    return max(1, round(seconds * TOKENS_PER_S))


# The server --------------------------------------------------------------------------------------------------


class Books:
    """What the server saw."""

    def __init__(self) -> None:
        self.first = self.in_flight = 0.0
        self.requests = self.faults = self.peak = 0
        self.seen: dict[tuple[int, int], int] = {}
        self.answered: dict[str, float] = {}  # "dataset/row" -> when
        self.used: list[tuple[float, int]] = []  # (time, in flight), a few times a second


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and Content-Length."""

    def __init__(self, books: Books, scale: float) -> None:
        self.books, self.scale, self.seen = books, scale, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.seen += data
        head = self.seen.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self.seen[:head].lower().find(b"content-length:")
        length = int(self.seen[at + 15 : head].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self.seen) < head + 4 + length:
            return
        whole, self.seen = self.seen, b""
        if whole.startswith(b"GET"):
            self.respond(200, {"books": {**vars(self.books), "seen": None}})
            return
        found = MARK.search(whole)
        assert found is not None
        self.ask(int(found[2]), int(found[1]))

    def ask(self, dataset: int, row: int) -> None:
        books, loop = self.books, asyncio.get_running_loop()
        books.first = books.first or time.time()
        books.requests += 1
        books.in_flight += 1
        books.peak = max(books.peak, int(books.in_flight))
        nth = books.seen[dataset, row] = books.seen.get((dataset, row), 0) + 1
        luck = random.Random(f"{dataset}/{row}/{nth}").random()
        seconds = seconds_of(dataset, row)
        if luck >= FAULTS:
            loop.call_later(seconds / self.scale, self.answer, dataset, row, seconds)
        elif luck < FAULTS / 2:
            loop.call_later(seconds / 4 / self.scale, self.fail, 200, dataset + row)
        elif luck < FAULTS * 3 / 4:
            loop.call_later(0.5 / self.scale, self.fail, 429, 0)
        else:
            loop.call_later(seconds / 4 / self.scale, self.fail, 0, 0)

    def answer(self, dataset: int, row: int, seconds: float) -> None:
        self.books.in_flight -= 1
        self.books.answered[f"{dataset}/{row}"] = time.time()
        tokens = tokens_of(seconds)
        names = list(TAGS)
        said = "".join(f" word{i * (row + 7)}" for i in range(min(tokens, 800)))
        message = {"role": "assistant", "content": said, "reasoning": "the target thinks"}
        self.respond(200, {
            "id": f"gen-{dataset}-{row}", "model": MODEL, "provider": names[row % len(names)],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 50, "completion_tokens": tokens, "cost": 0.0001},
        })  # fmt: skip

    def fail(self, status: int, number: int) -> None:
        self.books.in_flight -= 1
        self.books.faults += 1
        if not status:
            self.transport.close()
            return
        provider = list(TAGS)[number % len(TAGS)]
        error = {"code": 429, "message": "too many"} if status == 429 else {
            "code": 502, "message": "Provider returned error", "metadata": {"provider_name": provider}}  # fmt: skip
        self.respond(status, {"error": error})

    def respond(self, status: int, value: dict[str, Any]) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(value).encode()
        self.transport.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


async def serve(scale: float) -> None:
    loop, books = asyncio.get_running_loop(), Books()
    server = await loop.create_server(lambda: Connection(books, scale), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.1)
            books.used.append((time.time(), int(books.in_flight)))

    watching = asyncio.create_task(watch())
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)
    watching.cancel()


# A job -------------------------------------------------------------------------------------------------------


def job(argv: list[str], scale: float) -> int:
    """One generate job with the clocks that belong to real time scaled; starts when it is told to."""
    from eyrie import cli
    from eyrie.generate import breaker, buyer, command, gate, limiter

    assert command is not None
    for module, names in {
        limiter: ("ROUND_S", "COOL_S", "COOL_MAX_S", "REOPEN_S"), breaker: ("OPEN_S", "OPEN_MAX_S"),
        buyer: ("BACKOFF_S", "BACKOFF_MAX_S"),
    }.items():  # fmt: skip
        for name in names:
            setattr(module, name, getattr(module, name) / scale)
    gate.RAMP_PER_S *= scale
    gate.RAMP_LEAST_PER_S *= scale
    print("ready", flush=True)
    sys.stdin.readline()
    return cli.main(argv)


# The measurement ---------------------------------------------------------------------------------------------


def needed(dataset: int, budget: int) -> int:
    """Rows that fill a token budget."""
    total = 0
    for row in itertools.count():
        total += tokens_of(seconds_of(dataset, row))
        if total >= budget:
            return row + 1


def ideal(rows: dict[int, int], slots: int) -> float:
    """Seconds that the rows take on so many slots that are never idle while a row waits."""
    order = [(d, r) for r in range(max(rows.values())) for d in rows if r < rows[d]]
    free = [0.0] * slots
    for dataset, row in order:
        heapq.heapreplace(free, free[0] + seconds_of(dataset, row))
    return max(free)


def write_inputs(folder: Path, url: str, args: argparse.Namespace, budgets: list[int]) -> list[list[str]]:
    """Configuration, provider list and prompts of the eight jobs; their command lines."""
    from eyrie.config import compose, runtime, stage_slice
    from eyrie.files import write_json, write_jsonl_zst
    from eyrie.gateway.providers import FORMAT, Endpoint

    key = folder / "key.txt"
    key.write_text("nobody-checks-this\n")
    config = compose(ROOT / "conf", [
        "experiment=kimi_k2_5", f"generate.in_flight={args.in_flight}", "generate.max_tokens=2048",
        f"gateway.base_url={url}", f"gateway.api_key_file={key}", "target.openrouter_model=maker/target",
        "generate.budget_usd=1000",
    ])  # fmt: skip
    accepted = [
        Endpoint(tag, name, tag.split("/")[1], 0, 99.0, 262144, None, "0.0000005", "0.0000022").to_json()
        for name, tag in TAGS.items()
    ]
    write_json(folder / "providers.json", {
        "format": FORMAT, "gateway": "openrouter", "model": MODEL, "model_facts": {}, "accepted": accepted,
        "rejected": [], "policy": config["gateway"]["policy"],
    })  # fmt: skip
    lines = []
    names = list(config["datasets"])
    for number, budget in enumerate(budgets):
        rows = [
            {"id": f"{row:06d}", "index": row, "source": {"adapter": "benchmark", "row": row},
             "messages": [{"role": "user", "content": f"row {row} of set{number}"}]}
            for row in range(2 * needed(number, budget))
        ]  # fmt: skip
        write_jsonl_zst(folder / f"prompts{number}.jsonl.zst", rows)
        cut = json.loads(stage_slice(config, "generate", names[number]))
        cut["dataset"].update(name=f"set{number}", tokens=budget, turns=1)
        if "max_tokens" in cut["dataset"]:
            cut["dataset"]["max_tokens"] = None
        lines.append([
            "generate", "--slice", json.dumps(cut), "--runtime", runtime(config),
            "--providers", str(folder / "providers.json"), "--prompts", str(folder / f"prompts{number}.jsonl.zst"),
            "--vault", str(folder / "vault"), "--output", str(folder / f"set{number}.jsonl.zst"),
            "--summary", str(folder / f"set{number}.json"),
        ])  # fmt: skip
    return lines


def run_jobs(lines: list[list[str]], scale: float, folder: Path) -> None:
    """All jobs at once, from a common start. Raises SystemExit when one fails."""
    jobs = []
    for number, line in enumerate(lines):
        command = [sys.executable, __file__, "--job", json.dumps(line), "--scale", str(scale)]
        with open(folder / f"set{number}.log", "w") as log:
            jobs.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True))
    for one in jobs:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in jobs:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.close()
    codes = [one.wait() for one in jobs]
    if any(codes):
        tails = "\n".join((folder / f"set{n}.log").read_text()[-500:] for n, code in enumerate(codes) if code)
        raise SystemExit(f"jobs ended with {codes}\n{tails}")


def report(books: dict[str, Any], rows: dict[int, int], args: argparse.Namespace) -> float:
    """Print what was measured; the ratio."""
    best = ideal(rows, args.in_flight) / args.scale
    last = max(books["answered"][f"{d}/{r}"] for d, count in rows.items() for r in range(count))
    wall = last - books["first"]
    work = sum(seconds_of(d, r) for d, count in rows.items() for r in range(count)) / args.scale
    busy_end = next((t for t, n in reversed(books["used"]) if n >= 0.95 * args.in_flight), books["first"])
    busy = [n for t, n in books["used"] if books["first"] <= t <= busy_end]
    surplus = len(books["answered"]) - sum(rows.values())
    print(
        f"{args.in_flight} slots, {len(rows)} datasets, {sum(rows.values())} rows, {books['requests']} requests, "
        f"{books['faults']} faults, scale {args.scale:g}"
    )
    print(
        f"  wall {wall * args.scale:.0f} s, ideal {best * args.scale:.0f} s, work over slots "
        f"{work * args.scale / args.in_flight:.0f} s (in seconds of real time)"
    )
    if busy:
        print(f"  slots in use until the tail: {statistics.mean(busy) / args.in_flight:.3f}, at most {books['peak']}")
    print(f"  answers that no output needs: {surplus} ({surplus / sum(rows.values()):.2%})")
    print(f"  ideal / wall {best / wall:.3f}; wanted {WANTED}: {'met' if best / wall >= WANTED else 'missed'}")
    return best / wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--scale", type=float, default=10.0, help="how much faster than real time")
    parser.add_argument("--rows-per-slot", type=float, default=14.0, help="a run's length")
    parser.add_argument("--keep", type=Path, help="folder to work in, kept for a look")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.scale))
        return 0
    if args.job:
        return job(json.loads(args.job), args.scale)
    from urllib.request import ProxyHandler, build_opener

    mean_tokens = MEDIAN_S * math.exp(SIGMA**2 / 2) * TOKENS_PER_S
    budgets = [round(size * args.rows_per_slot * args.in_flight / len(SIZES) * mean_tokens) for size in SIZES]
    rows = {number: needed(number, budget) for number, budget in enumerate(budgets)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        os.makedirs(folder, exist_ok=True)
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", "--scale", str(args.scale)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/api/v1"
            run_jobs(write_inputs(folder, url, args, budgets), args.scale, folder)
            with build_opener(ProxyHandler({})).open(url) as response:
                books = json.load(response)["books"]
        finally:
            server.terminate()
            server.wait()
    return 0 if report(books, rows, args) >= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
