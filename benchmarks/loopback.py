"""A fast server for load tests: answers every POST with one prepared completion after a delay, and does nothing else.

  python -m benchmarks.loopback --low 2 --high 4 --bytes 8000

It prints its port and ends with its standard input. Standard library only, so that its share of the machine is small
and the same for every client that is measured against it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL, PROVIDER = "maker/target", "Alpha"


def reply(size: int) -> bytes:
    """A usable completion of about `size` bytes, with its HTTP head."""
    words = random.Random(0).choices("the target says what it says in this small world again".split(), k=size // 5)
    body = json.dumps({
        "id": "gen-0", "object": "chat.completion", "created": 0, "model": MODEL, "provider": PROVIDER,
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": " ".join(words)}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": len(words), "total_tokens": 100 + len(words),
                  "cost": 0.0001},
    }).encode()  # fmt: skip
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and Content-Length; one request at a time, as clients without pipelining send."""

    def __init__(self, answer: bytes, delay: tuple[float, float]) -> None:
        self.answer, self.delay = answer, delay
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.seen += data
        head = self.seen.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self.seen[:head].lower().find(b"content-length:")
        length = int(self.seen[at + 15 : head].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self.seen) >= head + 4 + length:
            self.seen = b""
            asyncio.get_running_loop().call_later(random.uniform(*self.delay), self.respond)

    def respond(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self.answer)


@contextmanager
def loopback(low: float, high: float, size: int) -> Iterator[str]:
    """The server in a process of its own; gives its address."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.loopback",
        "--low",
        str(low),
        "--high",
        str(high),
        "--bytes",
        str(size),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/api/v1"
        finally:
            process.stdin.close()
            process.terminate()


async def serve(args: argparse.Namespace) -> None:
    loop, answer = asyncio.get_running_loop(), reply(args.bytes)
    server = await loop.create_server(lambda: Connection(answer, (args.low, args.high)), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--low", type=float, default=2.0, help="shortest delay, seconds")
    parser.add_argument("--high", type=float, default=4.0, help="longest delay, seconds")
    parser.add_argument("--bytes", type=int, default=8000, help="size of an answer")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
