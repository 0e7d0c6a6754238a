"""Text of an answer, whole and in pieces."""

from __future__ import annotations

from eyrie.gateway.embedded.text import AnswerText

END = frozenset({0})


def decode(ids):
    return bytes(ids).decode("utf-8", "replace")


def pieces(ids, stop=()):
    text = AnswerText(decode, END, stop)
    return [text.more(ids[: n + 1], n + 1 == len(ids)) for n in range(len(ids))]


def test_pieces_join_to_the_whole_and_never_split_a_character():
    ids = [*"naïve – 猫!".encode(), 0]
    found = pieces(ids)
    assert "".join(found) == "naïve – 猫!" == AnswerText(decode, END).whole(ids)
    assert not any("\ufffd" in piece for piece in found)


def test_character_cut_by_the_length_limit_is_shown_as_it_is():
    assert "".join(pieces(list("é".encode())[:1])) == "\ufffd"


def test_stop_string_and_what_follows_are_no_text():
    ids = list(b"one STOP two")
    assert AnswerText(decode, END, ("STOP",)).whole(ids) == "one "
    assert "".join(pieces(list(b"one STOP"), ("STOP",))) == "one "


def test_beginning_of_a_stop_string_is_held_back_until_it_is_none():
    found = pieces(list(b"STOxSTO"), ("STOP",))
    assert found[:3] == ["", "", ""]
    assert "".join(found) == "STOxSTO"
