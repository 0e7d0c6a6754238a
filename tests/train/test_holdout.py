"""The look at the hold-out against drafts made one by one with a cache."""

from __future__ import annotations

import torch

from eyrie.drafter import DraftCache
from eyrie.train.batch import pack
from eyrie.train.holdout import matches, measure
from tests.drafter.drafters import make_drafter
from tests.train.examples import make_examples


def test_matches_are_those_of_a_chain_fed_the_texts_tokens() -> None:
    drafter = make_drafter().double()
    examples = make_examples(drafter, [[(3, 20)], [(5, 9), (12, 17)]])
    with torch.no_grad():
        for example in examples:  # make the target agree with about half of the drafts
            states = drafter.layer(
                drafter.embed(example.tokens[1:].long())[None], drafter.fuse(example.aux[:-1])[None],
                torch.arange(len(example.tokens) - 1)[None], DraftCache(),
            )  # fmt: skip
            drafts = drafter.to_target(drafter.logits(states)[0].argmax(-1))
            even = torch.arange(1, len(example.tokens), 2)
            example.argmax[even] = drafts[even - 1].int()
    batch = pack(examples, 3)
    right, counted = matches(drafter, batch)
    assert counted[:, 0].all() and counted.sum(0).tolist() == [len(slots) for slots in batch.slots]
    first = [
        (flat + 1) in batch.labels.tolist() and bool(right[at, 0]) for at, flat in enumerate(batch.slots[0].tolist())
    ]
    local = torch.cat([torch.arange(end - start) for start, end in zip(batch.offsets, batch.offsets[1:], strict=False)])
    expected = (local[batch.slots[0]] % 2 == 0).tolist()  # slot i is taught at i + 1, odd for the forced ones
    assert sum(a == b for a, b in zip(first, expected, strict=True)) >= len(first) - 1  # random tokens may agree too
    found = measure(drafter, [batch])
    assert found["slots"] == len(right) and 1 < found["slot_mean"] < 4
    assert found["joint"][0] == found["accuracy"][0] and found["joint"][1] <= found["accuracy"][1]
