"""ise-uiuc/Magicoder-OSS-Instruct-75K: `problem` is the request; `seed` is often cut code and no part of it.

`index` and `raw_index` number rows of files that went before this one, so the id is a hash of the problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyrie.files import fingerprint
from eyrie.prompts.rows import Adapter, Drop, PromptRow, text_column


def adapt(raw: Mapping[str, Any]) -> PromptRow | Drop:
    problem = text_column(raw, "problem")
    return PromptRow(id=fingerprint(problem), messages=[{"role": "user", "content": problem}])


ADAPTER = Adapter(columns=(("problem",),), adapt=adapt)
