"""The layer against a decode one token at a time, and its cache under rows that grow and shrink apart."""

from __future__ import annotations

import pytest
import torch

from eyrie.drafter import DraftCache
from tests.drafter.drafters import make_drafter


@pytest.mark.parametrize("settings", [{}, {"num_key_value_heads": 4}, {"fc_norm": False, "norm_output": True}])
def test_decoding_token_by_token_equals_one_causal_pass(settings: dict) -> None:
    drafter = make_drafter(**settings).double()
    embeds, hidden = torch.randn(2, 2, 7, 64, dtype=torch.float64)
    positions = torch.arange(7).expand(2, -1)
    whole = drafter.layer(embeds, hidden, positions)
    cache = DraftCache()
    steps = [drafter.layer(embeds[:, [i]], hidden[:, [i]], positions[:, [i]], cache) for i in range(7)]
    assert torch.allclose(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-10)


def test_rows_of_different_lengths_do_not_see_each_other_nor_dropped_entries() -> None:
    drafter = make_drafter().double()
    embeds, hidden = torch.randn(2, 2, 9, 64, dtype=torch.float64)
    lengths = torch.tensor([6, 3])
    cache = DraftCache()
    # A right-padded prefill, a chain of two drafts that is dropped, then the true next token.
    drafter.layer(embeds[:, :6], hidden[:, :6], torch.arange(6).expand(2, -1), cache)
    cache.truncate(lengths)
    for step in range(2):
        drafter.layer(embeds[:, [7]], hidden[:, [8]], lengths[:, None] + step, cache)
    cache.truncate(lengths)
    rows = torch.arange(2)
    batched = drafter.layer(embeds[rows, lengths][:, None], hidden[rows, lengths][:, None], lengths[:, None], cache)
    for row, length in enumerate(lengths.tolist()):
        part = slice(0, length + 1)
        alone = drafter.layer(embeds[[row], part], hidden[[row], part], torch.arange(length + 1)[None])
        assert torch.allclose(batched[row, 0], alone[0, -1], rtol=0, atol=1e-10)


def test_a_cache_cannot_be_truncated_to_more_than_it_holds() -> None:
    cache = DraftCache()
    cache.append(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    with pytest.raises(ValueError, match="more entries"):
        cache.truncate(torch.tensor([3]))


def test_draft_ids_are_shifted_by_their_offsets() -> None:
    drafter = make_drafter()
    ids = drafter.to_target(torch.arange(drafter.config.draft_vocab_size))
    assert torch.equal(ids, drafter.t2d.nonzero().flatten())


def test_rope_frequencies_stay_fp32_in_a_bf16_drafter() -> None:
    drafter = make_drafter()
    positions = torch.tensor([4000, 4001])
    exact = drafter.rotation(positions)[0]
    rounded = drafter.bfloat16().rotation(positions)[0]
    assert torch.equal(rounded, exact.bfloat16())
