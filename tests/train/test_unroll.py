"""The unrolled training forward against a literal chain decode, slot by slot and step by step."""

from __future__ import annotations

import pytest
import torch

from eyrie.drafter import DraftCache
from eyrie.drafter.model import Drafter
from eyrie.shards.slots import trained_slots
from eyrie.train.batch import Example, pack
from eyrie.train.unroll import unroll
from tests.drafter.drafters import make_drafter
from tests.train.examples import make_examples

VARIANTS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1},
    "eagle 3.0": {"fc_norm": False},
    "norm output": {"norm_output": True},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "wide heads": {"head_dim": 32, "intermediate_size": 160},
}


def chain_decode(drafter: Drafter, example: Example, slot: int, steps: int) -> list[torch.Tensor]:
    """What serving computes at one slot: true states up to it, then `steps - 1` steps fed by the layer's own output."""
    cache = DraftCache()
    tokens = example.tokens.long()
    states = torch.empty(0)
    for i in range(slot + 1):
        states = drafter.layer(
            drafter.embed(tokens[i + 1])[None, None], drafter.fuse(example.aux[i])[None, None],
            torch.tensor([[i]]), cache,
        )  # fmt: skip
    outputs = [states[0, 0]]
    for step in range(1, steps):
        token = tokens[slot + 1 + step]
        states = drafter.layer(drafter.embed(token)[None, None], states, torch.tensor([[slot + step]]), cache)
        outputs.append(states[0, 0])
    return outputs


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_slot_and_step_equals_a_literal_chain_decode(settings: dict) -> None:
    steps = 4
    drafter = make_drafter(**settings).double()
    examples = make_examples(drafter)
    batch = pack(examples, steps)
    with torch.no_grad():
        outputs = unroll(drafter, batch)
        compared = 0
        for example, start in zip(examples, batch.offsets, strict=False):
            masks = [trained_slots(example.spans, len(example.tokens), step) for step in range(steps)]
            for slot in masks[0].nonzero()[0].tolist():
                depth = sum(bool(mask[slot]) for mask in masks)
                expected = chain_decode(drafter, example, slot, depth)
                for step in range(depth):
                    at = batch.slots[step].tolist().index(start + slot)
                    assert torch.allclose(outputs[step][at], expected[step], rtol=0, atol=1e-6), (slot, step)
                    logits = drafter.logits(outputs[step][at])
                    assert torch.allclose(logits, drafter.logits(expected[step]), rtol=0, atol=1e-6)
                    compared += 1
    assert compared == sum(len(slots) for slots in batch.slots) > 100


def served_slots(spans: list[tuple[int, int]], steps: int, agree: bool) -> list[set[int]]:
    """The slots that a speculative decode uses at each step, by simulating it: in every turn the target first gives
    `x[s]`; each pass drafts `steps` tokens from the newest slot, and a draft counts while the turn has such a token.
    With `agree` every draft is accepted, without none is; the union over both and what lies between is what training
    must cover."""
    used: list[set[int]] = [set() for _ in range(steps)]
    for start, end in spans:
        newest = start  # position of the newest token that the target has given
        while newest < end:
            slot = newest - 1
            checked = [step for step in range(steps) if newest + 1 + step < end]
            for step in checked:
                used[step].add(slot)
            newest += len(checked) + 1 if agree else 1
    return used


@pytest.mark.parametrize("spans", [[(4, 11)], [(3, 9), (12, 14), (17, 18), (20, 33)], [(1, 4)]])
def test_the_packed_slots_are_those_a_simulated_decode_uses(spans: list[tuple[int, int]]) -> None:
    drafter = make_drafter()
    batch = pack(make_examples(drafter, [spans]), 4)
    rejected, accepted = served_slots(spans, 4, agree=False), served_slots(spans, 4, agree=True)
    for step, slots in enumerate(batch.slots):
        assert set(slots.tolist()) == rejected[step] | accepted[step]
        assert accepted[step] <= rejected[step]


def test_a_row_without_a_trained_slot_is_refused() -> None:
    drafter = make_drafter()
    with pytest.raises(ValueError, match="row0"):
        pack(make_examples(drafter, [[(5, 6)]]), 3)
