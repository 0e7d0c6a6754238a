"""Settings that every test needs before torch is loaded."""

import os

import pytest

# The tests share few cores with the processes they start: one thread each, and threads that wait must sleep.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole Snakemake runs first: they take minutes each, and one that starts last would leave the other cores idle."""
    items.sort(key=lambda item: "workflow" not in item.path.parts)
