"""The adapters by name: what `dataset.adapter` may be. A new dataset shape is one module and one line here."""

from __future__ import annotations

from eyrie.errors import InputError
from eyrie.prompts.adapters import glaive, humaneval, jsonl, magicoder, opencodeinstruct, sweagent
from eyrie.prompts.rows import Adapter

ADAPTERS: dict[str, Adapter] = {
    "glaive": glaive.ADAPTER,
    "humaneval": humaneval.ADAPTER,
    "jsonl": jsonl.ADAPTER,
    "magicoder": magicoder.ADAPTER,
    "opencodeinstruct": opencodeinstruct.ADAPTER,
    "sweagent": sweagent.ADAPTER,
}


def adapter(name: str) -> Adapter:
    """The adapter called `name`. Raises InputError listing the names there are."""
    if name not in ADAPTERS:
        raise InputError(f"no adapter is called {name!r}; there are {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[name]
