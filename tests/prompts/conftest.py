"""Shared by the tests of the prompt stage: running the real command on a file of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eyrie.cli import main
from eyrie.files import canonical_json, read_json, read_jsonl_zst

SETTINGS: dict[str, Any] = {
    "name": "mine", "adapter": "jsonl", "source": "", "config_name": None, "split": "train", "revision": None,
    "licence": "MIT", "rows": 1000, "tokens": None, "max_tokens": None, "max_prompt_chars": 8000, "turns": 1,
}  # fmt: skip


def make_slice(seed: int = 0, words: int = 10, **settings: Any) -> str:
    prompts = {"seed": seed, "decontaminate_words": words}
    return canonical_json({"dataset": {**SETTINGS, **settings}, "prompts": prompts})


@pytest.fixture
def prompts(tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """`prompts(rows or lines, adapter=..., benchmarks=[...])` -> code, rows, summary, and the bytes of both files."""

    def call(
        given: list[Any] | bytes | None = None, *, benchmarks: list[Path] | None = None, name: str = "rows.jsonl",
        seed: int = 0, words: int = 10, **settings: Any,
    ) -> SimpleNamespace:  # fmt: skip
        if given is not None:
            data = given if isinstance(given, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in given)
            (tmp_path / name).write_bytes(data)
            settings.setdefault("source", f"files:{tmp_path / name}")
        output, summary = tmp_path / "out" / "mine.jsonl.zst", tmp_path / "out" / "mine.summary.json"
        output.unlink(missing_ok=True)
        summary.unlink(missing_ok=True)
        code = main(
            ["prompts", "--slice", make_slice(seed, words, **settings), "--output", str(output)]
            + ["--summary", str(summary)]
            + (["--benchmark-prompts", *map(str, benchmarks)] if benchmarks else [])
        )
        if code:
            return SimpleNamespace(code=code, output=output)
        return SimpleNamespace(
            code=code, output=output, rows=list(read_jsonl_zst(output)), summary=read_json(summary),
            bytes=output.read_bytes() + summary.read_bytes(),
        )  # fmt: skip

    return call


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}
