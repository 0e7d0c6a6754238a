"""How long a generate job takes to its first new request when the vault holds 100,000 answers, and in what memory.

  python benchmarks/resume.py --stored 100000

The vault, the prompts and a gateway on loopback are made first. Then `eyrie generate` is started as its rule starts it
and the clock runs from before its process exists to the moment when the gateway has the first new request: interpreter,
imports, opening the vault, passing the stored rows, asking the key's usage. CPU seconds stand beside, since wall time
follows whatever else the machine does. In the same run:

  imports   the same interpreter importing the command and nothing else
  small     the same job when the vault holds 100 answers: the difference is what follows the vault's size
  peer      a loop that parses every prompt and fetches each row's answer from SQLite, as plain code would
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eyrie.config import compose, runtime, stage_slice
from eyrie.files import read_jsonl_zst, write_json, write_jsonl_zst
from eyrie.gateway.providers import FORMAT
from eyrie.vault import Answer, Decision, Identity, Limits, Usage, Vault, Wanted, admission, ledger
from eyrie.vault.ledger import current, decompress

MODEL = "maker/target"
DATASET = "B2_opencodeinstruct"
NEW = 64  # rows without an answer, at the end
WORDS = "a target says what it says and nothing else whatever it is asked by whoever asks it that day".split()


def texts(count: int, words: int) -> list[str]:
    """Different texts to take turns with."""
    dice = random.Random(1)
    return [" ".join(dice.choices(WORDS, k=words)) for _ in range(count)]


QUESTIONS, ANSWERS = texts(50, 180), texts(50, 800)


def prompt(number: int) -> dict[str, Any]:
    """A row of about 1 kB."""
    text = f"{number}: {QUESTIONS[number % len(QUESTIONS)]}"
    return {"id": f"row-{number:06d}", "index": number, "messages": [{"role": "user", "content": text}],
            "source": {"row": number}}  # fmt: skip


def reply(number: int) -> bytes:
    """A reply of about 4 kB, as the gateway sends it."""
    message = {"role": "assistant", "content": f"{number}: {ANSWERS[number % len(ANSWERS)]}"}
    return json.dumps({
        "id": f"gen-{number}", "model": MODEL, "provider": "Alpha",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 900, "cost": 0.002},
    }).encode()  # fmt: skip


def fill(folder: Path, stored: int) -> None:
    """A vault with `stored` answers, bought through its own journal, 1000 a commit."""
    with Vault(folder) as vault:
        job = vault.register("bench", "default", DATASET)

        def buy(connection: sqlite3.Connection, first: int) -> None:
            for number in range(first, min(first + 1000, stored)):
                identity = Identity(MODEL, DATASET, f"row-{number:06d}", 0, 0)
                wanted = Wanted(identity, f"{number:032x}", b"{}", 50_000)
                admitted = admission.admit(connection, job, wanted, Limits(10**12))
                assert admitted.decision is Decision.SEND
                answer = Answer("", "ok", reply(number), Usage(200, 900), "stop", "Alpha", MODEL, f"gen-{number}")
                ledger.finish(connection, admitted.entry, answer, Decimal("0.002"))

        for first in range(0, stored, 1000):
            vault.write(lambda c, f=first: buy(c, f))
        vault.end(job)


class Gateway(BaseHTTPRequestHandler):
    """Notes when the first request comes; answers the key's usage and nothing else."""

    first = threading.Event()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, {"data": {"usage": 0.0, "limit_remaining": None}})

    def do_POST(self) -> None:
        Gateway.first.set()
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(3600)  # the clock has been stopped; the job is killed

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def command(folder: Path, url: str, conf: Path) -> list[str]:
    """The job's command line, with its inputs written."""
    config = compose(conf, ["experiment=kimi_k2_5", f"dataset=[{DATASET}]", f"gateway.base_url={url}",
                            "generate.tokens_per_dataset=null"])  # fmt: skip
    config["target"]["openrouter_model"] = MODEL
    endpoint = {
        "tag": "alpha/int4", "provider_name": "Alpha", "quantization": "int4", "status": 0, "uptime_1d": 99.0,
        "context_length": 262144, "max_completion_tokens": None, "prompt_price": "0.0000006",
        "completion_price": "0.0000025", "supported_parameters": ["tools", "reasoning"],
    }  # fmt: skip
    write_json(folder / "providers.json", {
        "format": FORMAT, "gateway": "openrouter", "model": MODEL, "model_facts": {}, "accepted": [endpoint],
        "rejected": [], "policy": config["gateway"]["policy"],
    })  # fmt: skip
    return [
        sys.executable, "-m", "eyrie", "generate", "--slice", stage_slice(config, "generate", DATASET), "--runtime",
        runtime(config), "--providers", str(folder / "providers.json"), "--prompts", str(folder / "prompts.jsonl.zst"),
        "--vault", str(folder / "vault"), "--output", str(folder / "out.jsonl.zst"),
        "--summary", str(folder / "out.summary.json"),
    ]  # fmt: skip


def start(folder: Path, conf: Path) -> tuple[float, float, float]:
    """(seconds to the first request, CPU seconds of the job until then, its peak MB)."""
    Gateway.first.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    arguments = command(folder, f"http://127.0.0.1:{server.server_port}/api/v1", conf)
    environment = {**os.environ, "OPENROUTER_API_KEY": "no-key-needed-on-loopback"}
    began = time.perf_counter()
    job = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE)
    while not Gateway.first.wait(0.001):
        if job.poll() is not None:
            raise SystemExit(f"the job ended: {job.communicate()[1].decode()}")
    took = time.perf_counter() - began
    ticks = Path(f"/proc/{job.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    cpu = sum(int(n) for n in ticks) / os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{job.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    job.kill()
    job.communicate()
    server.shutdown()
    server.server_close()
    return took, cpu, peak


def peer(folder: Path) -> float:
    """CPU seconds that plain code takes to the first row without an answer: parse each prompt, look each row up."""
    began = time.process_time()
    connection = sqlite3.connect(folder / "vault" / "vault.sqlite")
    connection.row_factory = sqlite3.Row
    for row in read_jsonl_zst(folder / "prompts.jsonl.zst"):
        found = current(connection, Identity(MODEL, DATASET, row["id"], 0, 0))
        if found is None:
            return time.process_time() - began
        decompress(found["reply"])
    raise SystemExit("no row is open")


def imports() -> float:
    """CPU seconds of an interpreter that imports the command."""
    code = "import eyrie.cli, eyrie.generate.command, time; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", type=int, default=100_000, help="answers in the vault (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="starts; the median is told (default: %(default)s)")
    parser.add_argument("--conf-dir", type=Path, default=Path("conf"))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="eyrie-resume-"))
    try:
        results = {}
        for name, stored in (("small", 100), ("large", args.stored)):
            place = folder / name
            place.mkdir()
            write_jsonl_zst(place / "prompts.jsonl.zst", (prompt(n) for n in range(stored + NEW)), level=1)
            fill(place / "vault", stored)
            starts = [start(place, args.conf_dir) for _ in range(args.repeat)]
            results[name] = [sorted(column)[args.repeat // 2] for column in zip(*starts, strict=True)]
        size = sum(path.stat().st_size for path in (folder / "large" / "vault").iterdir()) / 1e6
        bare = sorted(imports() for _ in range(args.repeat))[args.repeat // 2]
        plain = peer(folder / "large")
    finally:
        shutil.rmtree(folder)
    (small, small_cpu, small_mb), (large, large_cpu, large_mb) = results["small"], results["large"]
    grown = large_cpu - small_cpu
    load = os.getloadavg()[0]
    print(f"a vault of {args.stored:,} answers, {size:,.0f} MB; medians of {args.repeat} starts, load {load:.1f}")
    print(f"first new request    {large:6.2f} s after exec, {large_cpu:.2f} s of CPU (wanted: under 2 s)")
    print(f"interpreter, imports {bare:6.2f} s of CPU of these")
    each = grown * 1e6 / args.stored
    print(f"with 100 answers     {small:6.2f} s, {small_cpu:.2f} s of CPU; each answer adds {each:.1f} us")
    print(f"peak memory          {large_mb:6.0f} MB, with 100 answers {small_mb:.0f} MB")
    print(f"plain loop           {plain:6.2f} s of CPU for the same rows: {plain / max(grown, 0.01):.1f} times as much")


if __name__ == "__main__":
    main()
