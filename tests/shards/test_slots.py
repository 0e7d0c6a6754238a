"""The slots that train are the slots that a speculative decode uses."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eyrie.shards.slots import trained_count, trained_slots


@st.composite
def rows(draw):
    """Spans of a conversation of 1 to 4 turns, each turn a prompt part and a generated part."""
    position, spans = 0, []
    for _ in range(draw(st.integers(1, 4))):
        start = position + draw(st.integers(1, 5))
        end = start + draw(st.integers(1, 9))
        spans.append((start, end))
        position = end
    return spans, position + draw(st.integers(0, 3))


def served(spans, chain):
    """Every (slot, step) whose guess is checked, over every way in which the guesses may be accepted.

    `known` tokens are x[0 .. known - 1]; the target has states for all of them but the last.
    """
    used = set()
    for start, end in spans:
        waiting, seen = [start + 1], set()  # the prompt's forward pass gave x[start]
        while waiting:
            known = waiting.pop()
            if known in seen or known >= end:  # the turn is over
                continue
            seen.add(known)
            slot = known - 2  # newest position with target states; its token is x[slot + 1], the newest known
            checked = [step for step in range(chain) if slot + 2 + step < end]
            used |= {(slot, step) for step in checked}
            for accepted in range(len(checked) + 1):
                waiting.append(known + accepted + 1)  # accepted guesses and the target's own next token
    return used


@settings(max_examples=200, deadline=None)
@given(rows(), st.integers(1, 6))
def test_trained_slots_are_those_a_simulated_speculative_decode_uses(row, chain):
    spans, length = row
    trained = {(int(i), k) for k in range(chain) for i in np.nonzero(trained_slots(spans, length, k))[0]}
    assert trained == served(spans, chain)


@settings(max_examples=100, deadline=None)
@given(rows())
def test_count_is_the_number_of_first_step_slots(row):
    spans, length = row
    assert trained_count(spans) == trained_slots(spans, length, 0).sum()


def test_first_slot_is_the_last_prompt_position_and_the_end_token_is_the_last_guess():
    # x: 0 1 2 | 3 4 5 6 | with e = 6 the end token
    assert np.nonzero(trained_slots([(3, 7)], 9, 0))[0].tolist() == [2, 3, 4]
    assert np.nonzero(trained_slots([(3, 7)], 9, 2))[0].tolist() == [2]
    assert not trained_slots([(3, 7)], 9, 3).any()


def test_a_span_of_one_token_trains_nothing():
    assert not trained_slots([(3, 4)], 5, 0).any()
    assert trained_count([(3, 4)]) == 0
