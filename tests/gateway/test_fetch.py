"""A listing read as it arrives: one entry in memory, cut off or odd ones refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyrie.gateway.fetch import items

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


@given(st.lists(VALUES, max_size=6), st.integers(1, 40), st.booleans(), st.dictionaries(st.text(max_size=3), VALUES))
def test_entries_come_out_whole_however_the_text_is_cut(data: list, size: int, ascii_: bool, before: dict) -> None:
    before.pop("data", None)
    text = json.dumps({**before, "data": data, "after": 1}, ensure_ascii=ascii_)
    assert list(items(pieces(text, size))) == data


def test_reading_stops_where_the_reader_stops() -> None:
    read = 0

    def chunks() -> Iterator[str]:
        nonlocal read
        for i in range(100_000):
            read += 1
            yield ('{"data": [' if i == 0 else ",") + json.dumps({"id": i, "text": "x" * 1000})
        yield "]}"

    assert next(entry for entry in items(chunks()) if entry["id"] == 5) == {"id": 5, "text": "x" * 1000}
    assert read < 20


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"data": [1, 2', '{"data": {}}', '{"other": []}', "<html>", '{"data": [{"a": 1}', '{"data" [1]}'],
)  # fmt: skip
def test_what_is_no_listing_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        list(items(pieces(text, 3)))
