"""The seeded order: the first N stay the first N, whatever the order of reading."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from eyrie.prompts.order import Selection, place

ROWS = [(f"id{number}", f"text{number}", number) for number in range(300)]


def select(rows: list[tuple[str, str, int]], size: int, seed: int = 0) -> Selection:
    selection = Selection(size, seed)
    for row in rows:
        if selection.wants(row[0]):
            selection.offer(*row)
    return selection


def test_a_larger_selection_starts_with_the_smaller_one() -> None:
    small, large, all_rows = (select(ROWS, size).rows() for size in (10, 50, 1000))
    assert large[:10] == small
    assert all_rows[:50] == large
    assert sorted(all_rows) == list(range(300))


def test_the_order_is_a_shuffle_that_the_seed_decides() -> None:
    assert select(ROWS, 300, seed=1).rows() != select(ROWS, 300, seed=2).rows()
    assert select(ROWS, 300, seed=1).rows() != list(range(300))
    assert place(1, "a", "") == place(1, "a", "") != place(2, "a", "")


def test_memory_is_that_of_what_is_taken() -> None:
    selection = select(ROWS, 20)
    assert len(selection._held) == len(selection._by_digest) == 20
    assert len(selection._heap) <= 21


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=120), st.integers(1, 30), st.randoms())
def test_of_equal_prompts_the_first_in_the_order_stays_however_they_were_read(
    texts: list[int], size: int, shuffler: random.Random
) -> None:
    """Compared with the plain rule on everything in memory: sort by place, skip what was seen, take `size`."""
    rows = [(f"id{number}", f"text{text}", number) for number, text in enumerate(texts)]
    wanted, seen, skipped = [], set(), 0
    for _, digest, number in sorted(rows, key=lambda row: place(0, row[0], row[1])):
        if len(wanted) == size:
            break
        skipped += digest in seen
        wanted += [] if digest in seen else [number]
        seen.add(digest)
    shuffler.shuffle(rows)
    selection = select(rows, size)
    assert selection.rows() == wanted
    if len(wanted) == size:
        # Duplicates behind the last one taken are not counted, those before it are.
        assert selection.duplicates() == skipped
    else:
        assert selection.duplicates() == len(rows) - len(wanted)


def test_two_different_prompts_with_one_id_leave_one() -> None:
    rows = [("same", "b", 1), ("same", "a", 2), ("other", "c", 3)]
    assert set(select(rows, 9).rows()) == set(select(rows[::-1], 9).rows()) == {2, 3}
