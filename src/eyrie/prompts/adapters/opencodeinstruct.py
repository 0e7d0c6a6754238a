"""nvidia/OpenCodeInstruct: `input` is the request. The other columns judge an answer that is bought anew here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyrie.prompts.rows import Adapter, BadRow, Drop, PromptRow, text_column


def adapt(raw: Mapping[str, Any]) -> PromptRow | Drop:
    identity, request = text_column(raw, "id"), text_column(raw, "input")
    if not identity:
        raise BadRow("column id is empty")
    return PromptRow(id=identity, messages=[{"role": "user", "content": request}])


ADAPTER = Adapter(columns=(("id", "input"),), adapt=adapt)
