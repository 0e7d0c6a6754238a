"""`python -m tests.sglang.generate_job FOLDER PYTHON TARGET`: a generate job that starts real SGLang itself.

Run in Eyrie's own environment; PYTHON is the interpreter that has SGLang, TARGET the target.json of a small model.
Writes FOLDER/job.json: the exit code, the rows, the summary, and the server's processes that are left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.generate.job import Job, prompt

LAUNCHER = Path(__file__).with_name("launch.py")
ARGS = {
    "device": "cpu", "dtype": "float32", "attention-backend": "torch_native", "disable-cuda-graph": True,
    "disable-overlap-schedule": True, "mem-fraction-static": 0.3, "max-total-tokens": 8192, "context-length": 512,
    "max-running-requests": 16,
}  # fmt: skip
QUESTIONS = ["What is the capital of France?", "What is two plus two?", "word " * 600]


def main(folder: Path, python: str, target: Path) -> None:
    job = Job(folder, None, kind="openai")
    job.rows = [prompt(index, text) for index, text in enumerate(QUESTIONS)]
    job.cut["generate"].update(max_tokens=24, temperature=0.0)
    launch = {"engine": "sglang", "command": [python, str(LAUNCHER)], "args": ARGS, "ready_s": 1200.0}
    job.runtime.update(budget_usd=0.0, timeout_s=300.0)
    job.runtime["gateway"].update(api_key_file=None, launch=launch)
    plain = job.arguments()
    log = folder / "server.log"
    job.arguments = lambda: [*plain, "--target", str(target), "--server-log", str(log)]  # type: ignore[method-assign]
    code = job.run()
    left = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(LAUNCHER).encode() in _command(entry)
    ]
    rows = job.read() if code == 0 else []
    facts = job.facts() if code == 0 else {}
    (folder / "job.json").write_text(json.dumps({"code": code, "rows": rows, "summary": facts, "left": left}))


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
