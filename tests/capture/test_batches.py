"""Batches hold every row once, respect the budget and waste little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyrie.capture.batches import plan


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 400))
def test_every_row_runs_once_and_only_a_lone_row_may_pass_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan(lengths, budget)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(lengths)))
    for batch in batches:
        assert batch.length == max(lengths[row] for row in batch.rows)
        assert batch.padded_tokens <= budget or len(batch.rows) == 1


def test_longest_batch_comes_first() -> None:
    assert [batch.length for batch in plan([3, 50, 7, 50], 100)] == [50, 7]


@pytest.mark.parametrize(("mean", "sigma"), [(5.5, 0.8), (7.0, 0.9)], ids=["chat", "reasoning"])
def test_padding_stays_below_five_percent_on_a_shard_of_real_size(mean: float, sigma: float) -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(mean, sigma, 1024), 10, 8192).astype(int).tolist()
    padded = sum(batch.padded_tokens for batch in plan(lengths, 4096))
    assert padded / sum(lengths) < 1.05
