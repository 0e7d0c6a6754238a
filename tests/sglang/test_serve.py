"""A generate job that starts real SGLang on the CPU, lets it answer and stops it (minutes: it loads a model).

Run by the environment of envs/sglang-cpu.sh; the job itself runs in Eyrie's own environment (EYRIE_PYTHON, by default
that of .venv) on the target of the last run (EYRIE_TARGET, by default results/laptop/target.json).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.sglang
if importlib.util.find_spec("sglang") is None:
    pytest.skip("needs the environment of envs/sglang-cpu.sh", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job left: exit code, rows, summary, processes."""
    target = Path(os.environ.get("EYRIE_TARGET", ROOT / "results" / "laptop" / "target.json"))
    if not target.is_file():
        pytest.skip(f"no run has made {target} yet")
    folder = tmp_path_factory.mktemp("job")
    python = os.environ.get("EYRIE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    subprocess.run(
        [python, "-m", "tests.sglang.generate_job", str(folder), sys.executable, str(target)], cwd=ROOT, check=True
    )
    return json.loads((folder / "job.json").read_text())


def test_it_answers_free_and_names_the_prompts_exact_tokens(job: dict[str, Any]) -> None:
    assert job["code"] == 0
    said = {row["id"]: row["messages"][-1]["content"] for row in job["rows"]}
    assert "Paris" in said["row-0000"] and len(said) == 2
    for row in job["rows"]:
        answer = row["answers"][0]
        assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
        assert answer["cost_microusd"] == 0


def test_a_prompt_beyond_its_context_is_that_rows_fault(job: dict[str, Any]) -> None:
    assert job["summary"]["rows"]["rejected"] == {"context_length": 1}


def test_none_of_its_processes_is_left(job: dict[str, Any]) -> None:
    assert job["left"] == []
