"""The EAGLE-3 drafter: its shape, the module, the files both engines load, and the rules that guard them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyrie.drafter.cache import DraftCache
    from eyrie.drafter.config import DrafterConfig
    from eyrie.drafter.load import load_drafter
    from eyrie.drafter.model import Drafter

__all__ = ["DraftCache", "Drafter", "DrafterConfig", "load_drafter"]

_HOMES = {"DraftCache": "cache", "Drafter": "model", "DrafterConfig": "config", "load_drafter": "load"}


def __getattr__(name: str) -> Any:
    """Import on first use: `eyrie check --help` must not wait for torch and transformers."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
