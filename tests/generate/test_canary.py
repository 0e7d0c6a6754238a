"""The key is in one header and nowhere else, however a gateway and a crash try to spread it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import zstandard

from eyrie.errors import ExitCode
from eyrie.gateway.clients import Clients
from eyrie.gateway.key import ApiKey
from tests.gateway_double import Double
from tests.generate.job import KEY, Job, prompt

SECRET = KEY.removeprefix("sk-" + "or-v1-")  # what no text may hold, with or without its prefix
LABEL = f"{KEY[:12]}...{KEY[-3:]}"  # how the gateway's own /key shows it


def readable(data: bytes) -> Iterator[bytes]:
    """`data`, and what it holds when it is compressed."""
    yield data
    with contextlib.suppress(zstandard.ZstdError):
        yield zstandard.ZstdDecompressor().decompressobj().decompress(data)


def leaks(folder: Path, but: Path) -> list[str]:
    """Files that hold the key or its label, and cells of databases that do, looked at decompressed."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path == but:
            continue
        if any(word.encode() in text for text in readable(path.read_bytes()) for word in (SECRET, LABEL)):
            found.append(str(path))
        if path.suffix != ".sqlite":
            continue
        with contextlib.closing(sqlite3.connect(path)) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                for row in connection.execute(f"SELECT * FROM {name}"):
                    cells = [c if isinstance(c, bytes) else str(c).encode() for c in row]
                    if any(w.encode() in t for cell in cells for t in readable(cell) for w in (SECRET, LABEL)):
                        found.append(f"{path}: {name} {row[0]}")
    return found


def processes_that_show_it() -> list[str]:
    """Processes whose arguments or environment hold the key."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    if SECRET.encode() in (entry / name).read_bytes():
                        found.append(f"{entry.name}: {name}")
    return found


def test_a_canary_key_is_in_no_file_message_argument_or_environment(tmp_path: Path) -> None:
    faults = {"echo": 0.2, "echo_answer": 0.1, "429": 0.1, "drop": 0.05, "no_usage": 0.1}
    with Double(rates=faults, retry_after=0.02, latency=[0.05, 0.1]) as double:
        job = Job(tmp_path, double, rows=60)
        job.runtime["max_attempts"] = 50
        process = job.start()
        seen: list[str] = []
        while process.poll() is None:
            seen += processes_that_show_it()
            time.sleep(0.05)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.returncode == 0, said
        assert double.state()["headers"]["authorization"] == f"Bearer {KEY}"
        assert {"echo", "echo_answer"} <= set(double.brief()["faults"])
        double.change(keys=["another"])  # the refusal repeats the key that it was sent
        job.rows = [prompt(i) for i in range(70)]
        refused = job.start()
        assert refused.stderr is not None
        said += refused.stderr.read()
        assert refused.wait() == ExitCode.KEY_REFUSED and "[key]" in said
    assert seen == [] and SECRET not in said and LABEL not in said
    assert leaks(tmp_path, but=tmp_path / "key.txt") == []


async def failing_request(where: str, double: Double) -> BaseException:
    """What httpx raises for a request that carries the key."""
    url = "http://127.0.0.1:9" if where == "a closed port" else double.url
    async with Clients(url, ApiKey(KEY), 4, 1.0) as clients:
        try:
            body = b'{"messages":[{"role":"user"}]}'
            async with clients.of(0).stream("POST", f"{url}/chat/completions", content=body) as response:
                await response.aread()
        except httpx.HTTPError as error:
            return error
    raise AssertionError("the request was answered")


@pytest.mark.parametrize("where", ["a closed port", "a server that hangs up"])
def test_exceptions_of_the_transport_do_not_speak_of_the_key(where: str) -> None:
    import trio

    with Double(rates={"reset": 1.0}) as double:
        error = trio.run(failing_request, where, double)
    told = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error)) + repr(error.args)
    assert SECRET not in told


def test_a_key_prints_as_a_placeholder_and_cannot_be_pickled() -> None:
    import pickle

    key = ApiKey(KEY)
    assert SECRET not in f"{key} {key!r} {[key]} {Clients('http://127.0.0.1:9', key, 1, 1.0)}"
    with pytest.raises(TypeError):
        pickle.dumps(key)
