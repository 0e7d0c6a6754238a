"""The slot mean against a count by hand."""

from __future__ import annotations

import torch

from eyrie.drafter.acceptance import joint_prefix, slot_mean


def test_a_chain_breaks_at_its_first_wrong_draft_and_where_the_turn_ends() -> None:
    matches = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]]).bool()
    counted = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    joint = joint_prefix(matches, counted)
    # Position 0: three of four; position 1: the first of three counted slots; position 2: the first of two.
    assert joint.tolist() == [3 / 4, 1 / 3, 1 / 2]
    assert abs(slot_mean(joint, 2) - (1 + 3 / 4 + 1 / 3)) < 1e-12
    assert joint_prefix(matches[:0], counted[:0]).tolist() == [0, 0, 0]
