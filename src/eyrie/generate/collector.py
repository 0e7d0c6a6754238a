"""Python's cycle collector during a run: thousands of tasks under way are hundreds of thousands of live objects, and
walking them again and again costs half a millisecond per request and stalls the event loop for tenths of a second."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (20_000, 20, 100)  # allocations before a young collection; of those before a middle, before a full one


@contextmanager
def calm_collector() -> Iterator[None]:
    """Collect seldom, and never look at what was there before. Requests leave hardly any cycles behind."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
