"""Thousands of slow requests in flight: CPU per request of the sending path, worst stall of its event loop, memory.

  python benchmarks/transport.py --in-flight 2000

Every client runs in a process of its own against the same loopback server (`loopback.py`), opens at most 100
connections a second and sends the same requests; in one run on one machine, so the ratios stand although absolute
figures follow its load:
  eyrie    admission, limiter, breakers, request narrowing, the clients, and the judgement of every reply
  aiohttp  one ClientSession and json.loads: the least that a client can do (needs `pip install aiohttp`)
  httpx    one AsyncClient and json.loads, ended after `--patience` seconds

CPU is the process's own, user and system. A stall is the time that a task which sleeps 10 ms was late, after the
ramp: `wall` as the task saw it (it includes being preempted by other processes), `cpu` what the loop itself worked
meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, __file__.rsplit("/", 2)[0])

from benchmarks.loopback import MODEL, PROVIDER, loopback

CONNECTS_PER_S = 100
LOW_S, HIGH_S, BYTES = 4.0, 8.0, 8000
TICK_S = 0.01
RAMP = 1.25  # stalls are looked at from so many times the shortest ramp on
WANTED_MS, WANTED_RATIO, WANTED_STALL_S, WANTED_MB = 1.5, 3.5, 0.5, 300


def body(number: int) -> bytes:
    """The `number`th request: two kilobytes of conversation."""
    text = f"question {number}: " + "what does the target say? " * 75
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4096,
                       "provider": {"only": ["alpha/int4", "beta/int4"]}}).encode()  # fmt: skip


@dataclass
class Meter:
    """What one client used. `tick` belongs after every sleep of `TICK_S` on the loop that is measured."""

    ramp_s: float
    done: int = 0
    faults: int = 0
    began: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)
    stall: float = 0.0
    stall_cpu: float = 0.0
    _wall: float = field(default_factory=time.perf_counter)
    _cpu: float = field(default_factory=time.thread_time)

    def tick(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        if wall - self.began > self.ramp_s:
            self.stall = max(self.stall, wall - self._wall - TICK_S)
            self.stall_cpu = max(self.stall_cpu, cpu - self._cpu)
        self._wall, self._cpu = wall, cpu

    def result(self) -> dict[str, float]:
        return {
            "done": self.done, "faults": self.faults, "seconds": time.perf_counter() - self.began,
            "ms": 1000 * (time.process_time() - self.cpu) / max(self.done, 1),
            "stall": self.stall, "stall_cpu": self.stall_cpu,
            "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }  # fmt: skip


def eyrie_client(args: argparse.Namespace, url: str) -> dict[str, float]:
    """The generate job's own sending path, from admission to the judged reply; the vault is not part of it."""
    import trio

    from eyrie.gateway.clients import Clients, allow_open_files
    from eyrie.gateway.exchange import Patience, exchange
    from eyrie.gateway.key import ApiKey
    from eyrie.gateway.providers import Endpoint, ProviderList
    from eyrie.gateway.reply import Expected
    from eyrie.gateway.request import headers, narrow
    from eyrie.generate.breaker import Breaker
    from eyrie.generate.collector import calm_collector
    from eyrie.generate.gate import Gate
    from eyrie.generate.limiter import Limiter
    from eyrie.generate.stop import StopSign

    def endpoint(tag: str, name: str) -> Endpoint:
        return Endpoint(tag, name, "int4", 0, 99.0, 262144, None, "0.0000005", "0.0000022")

    accepted = (endpoint("alpha/int4", PROVIDER), endpoint("beta/int4", "Beta"))
    providers = ProviderList("openrouter", MODEL, {}, accepted)
    allow_open_files(args.in_flight)
    patience, key = Patience(600.0, 1800.0), ApiKey("no key")

    async def note(generation: str) -> None:
        return None

    async def main() -> dict[str, float]:
        gate = Gate(Limiter(args.in_flight), StopSign(), Breaker(accepted))
        gate.leased = args.in_flight
        numbers = iter(range(args.requests))
        meter = Meter(RAMP * args.in_flight / CONNECTS_PER_S)

        async def work(clients: Clients) -> None:
            for number in numbers:
                while not await ask(clients, number):
                    meter.faults += 1  # on a machine that starves the server a connect may time out
                meter.done += 1

        async def ask(clients: Clients, number: int) -> bool:
            given = await gate.acquire((number,))
            reply = await exchange(
                clients.of(given.slot), f"{url}/chat/completions", narrow(body(number), given.route.tags),
                headers("openrouter"), Expected(providers, "openrouter", True), patience, note=note,
                redact=key.redact_bytes,
            )  # fmt: skip
            gate.learn(reply, given.route, given.at)
            assert reply.verdict is None or reply.cost == Decimal("0.0001"), reply
            gate.release(given)
            return reply.verdict is not None

        async def beat() -> None:
            while True:
                await trio.sleep(TICK_S)
                meter.tick()

        async with Clients(url, key, args.slots_per_client, 600.0) as clients, trio.open_nursery() as beside:
            beside.start_soon(beat)
            beside.start_soon(gate.pump)
            async with trio.open_nursery() as nursery:
                for _ in range(args.in_flight):
                    nursery.start_soon(work, clients)
            beside.cancel_scope.cancel()
        return meter.result()

    with calm_collector():
        return trio.run(main)


def aiohttp_client(args: argparse.Namespace, url: str) -> dict[str, float]:
    import aiohttp

    async def main() -> dict[str, float]:
        numbers = iter(range(args.requests))
        meter = Meter(RAMP * args.in_flight / CONNECTS_PER_S)

        async def beat() -> None:
            while True:
                await asyncio.sleep(TICK_S)
                meter.tick()

        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        ) as session:

            async def work(slot: int) -> None:
                await asyncio.sleep(slot / CONNECTS_PER_S)
                for number in numbers:
                    async with session.post(f"{url}/chat/completions", data=body(number)) as response:
                        json.loads(await response.read())
                    meter.done += 1

            beating = asyncio.create_task(beat())
            await asyncio.gather(*(work(slot) for slot in range(args.in_flight)))
            beating.cancel()
        return meter.result()

    return asyncio.run(main())


def httpx_client(args: argparse.Namespace, url: str) -> dict[str, float]:
    import httpx
    import trio

    async def main() -> dict[str, float]:
        numbers = iter(range(args.requests))
        meter = Meter(RAMP * args.in_flight / CONNECTS_PER_S)

        async def beat() -> None:
            while True:
                await trio.sleep(TICK_S)
                meter.tick()

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

            async def work(slot: int) -> None:
                await trio.sleep(slot / CONNECTS_PER_S)
                for number in numbers:
                    try:
                        response = await client.post(f"{url}/chat/completions", content=body(number))
                    except httpx.TransportError:  # a pool of this size closes sockets that it has handed out
                        meter.faults += 1
                        continue
                    json.loads(response.content)
                    meter.done += 1

            with trio.move_on_after(args.patience):
                async with trio.open_nursery() as beside:
                    beside.start_soon(beat)
                    async with trio.open_nursery() as nursery:
                        for slot in range(args.in_flight):
                            nursery.start_soon(work, slot)
                    beside.cancel_scope.cancel()
            result = meter.result()
            print(json.dumps(result), flush=True)
            sys.stdout.flush()
            __import__("os")._exit(0)  # closing this pool takes longer than the measurement
        return result

    return trio.run(main)


PARTS = {"eyrie": eyrie_client, "aiohttp": aiohttp_client, "httpx": httpx_client}


def measure(args: argparse.Namespace, name: str) -> dict[str, Any] | None:
    """One client in a process of its own, with a server of its own; None when it cannot run."""
    with loopback(LOW_S, HIGH_S, BYTES) as url:
        command = [sys.executable, __file__, "--part", name, "--url", url]
        for key in ("in_flight", "requests", "slots_per_client", "patience"):
            command += [f"--{key.replace('_', '-')}", str(getattr(args, key))]
        found = subprocess.run(command, stdout=subprocess.PIPE)
    return json.loads(found.stdout) if found.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--slots-per-client", type=int, default=4)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that the plain httpx client gets")
    parser.add_argument("--only", choices=tuple(PARTS), help="measure one client")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part](args, args.url)))
        return 0
    names = [args.only] if args.only else list(PARTS)
    found = {name: measure(args, name) for name in names}
    print(
        f"{args.in_flight} in flight, {args.requests} requests, answers of {BYTES} bytes after {LOW_S:g}-{HIGH_S:g} s"
    )
    for name, one in found.items():
        if one is None:
            print(f"  {name:8} could not run")
            continue
        print(
            f"  {name:8} {one['ms']:6.2f} ms CPU a request, stall {one['stall']:.2f} s (cpu {one['stall_cpu']:.2f} s), "
            f"{one['mb']:.0f} MB, {one['done']:.0f} done in {one['seconds']:.0f} s, {one['faults']:.0f} faults"
        )
    own, peer = found.get("eyrie"), found.get("aiohttp")
    if own is None or peer is None:
        return 0 if args.only else 1
    ratio = own["ms"] / peer["ms"]
    met = (own["ms"] <= WANTED_MS or ratio <= WANTED_RATIO) and own["stall"] <= WANTED_STALL_S and own["mb"] < WANTED_MB
    print(
        f"eyrie / aiohttp {ratio:.2f}; wanted {WANTED_MS} ms or {WANTED_RATIO} times aiohttp, no stall above "
        f"{WANTED_STALL_S} s, under {WANTED_MB} MB: {'met' if met else 'missed'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
