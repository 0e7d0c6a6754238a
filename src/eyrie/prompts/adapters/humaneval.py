"""OpenAI's HumanEval: `prompt` is the head of a Python function, recast as a request to complete it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyrie.prompts.rows import Adapter, Drop, PromptRow, text_column

REQUEST = "Complete the following Python function.\n\n```python\n{code}\n```"


def adapt(raw: Mapping[str, Any]) -> PromptRow | Drop:
    code = text_column(raw, "prompt").strip("\n").rstrip()
    if not code:
        return Drop("empty")
    return PromptRow(id=text_column(raw, "task_id"), messages=[{"role": "user", "content": REQUEST.format(code=code)}])


ADAPTER = Adapter(columns=(("task_id", "prompt"),), adapt=adapt)
