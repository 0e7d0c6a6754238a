"""Token rows are exactly what the server saw, and their spans exactly what the target said."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyrie.chat import render_messages, render_prompt
from eyrie.errors import InputError
from eyrie.files import write_jsonl_zst
from eyrie.shards.tokens import read_manifest
from eyrie.tokenize.rows import Draft, Turn, cut, join_turns
from eyrie.tokenize.stage import Tokenizing, tokenize
from tests.chat.small import CHATML, THINKING, TOOLS, WEATHER, assistant, call, small_tokenizer, user

END = "<|im_end|>"


def settings_of(rows=8, rows_per_shard=4, max_length=4096, thinking=None):
    return {
        "tokenize": {"rows_per_shard": rows_per_shard, "max_length": max_length},
        "target": {"thinking": thinking, "trust_remote_code": False},
        "dataset": {"name": "d", "rows": rows},
    }


def generated_row(messages, index=0, finish="stop", tools=None, **more):
    """A generated row; `more` holds per-answer lists (token_ids, prompt_token_ids)."""
    places = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    answers = [
        {"turn": turn, "message": place, "finish_reason": finish, "usage": {},
         **{key: values[turn] for key, values in more.items() if values[turn] is not None}}
        for turn, place in enumerate(places)
    ]  # fmt: skip
    row = {"id": f"r{index}", "index": index, "messages": messages, "answers": answers, "source": {}}
    return {**row, "tools": tools} if tools else row


def token_rows(rows, template=CHATML, **changes):
    tokenizer = small_tokenizer(template)
    work = Tokenizing(tokenizer, settings_of(**changes), len(tokenizer), "generated/d.jsonl.zst")
    return list(work.rows(rows)), work, tokenizer


def spoken(tokenizer, row):
    """What each span says."""
    return [tokenizer.decode(row.input_ids[start:end].tolist()) for start, end in row.spans]


TEXT = st.one_of(
    st.text(max_size=30).filter(lambda text: "\r" not in text),
    st.sampled_from(["你好，世界", "🙂🙃👩‍👩‍👧", "\n", "  x", "naïve\n\n", "x" * 40, "{'a': [1]}", "\u2028", "ẞ̈"]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_decoding_a_span_gives_the_answers_text_and_the_end(turns):
    messages = [message for question, answer in turns for message in (user(question), assistant(answer))]
    rows, work, tokenizer = token_rows([generated_row(messages)])
    assert set(work.dropped) <= {"no_trained_slot"}  # an answer of nothing but its end
    said = [text for row in rows for text in spoken(tokenizer, row) if text != END]
    assert said == [answer + END for _, answer in turns if answer]
    for row in rows:  # before its first span a row is the prompt that the server built
        question = 2 * row.turn + 1
        assert row.input_ids[: row.spans[0][0]].tolist() == render_prompt(tokenizer, messages[:question])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT.filter(bool), TEXT.filter(bool)), min_size=1, max_size=4))
def test_emptied_thinking_gives_one_row_per_turn(turns):
    messages = []
    for question, thought, answer in turns:
        messages += [user(question), assistant(answer, reasoning=thought)]
    rows, work, tokenizer = token_rows([generated_row(messages)], THINKING, thinking=True)
    assert [row.turn for row in rows] == list(range(len(turns)))
    assert work.counted["history_rewritten"] == (len(turns) > 1) and not work.dropped
    for row, (_, thought, answer) in zip(rows, turns, strict=True):
        assert spoken(tokenizer, row) == [f"{thought}</think>{answer}{END}"]
        prompt = render_prompt(tokenizer, messages[: 2 * row.turn + 1], thinking=True)
        assert row.input_ids[: row.spans[0][0]].tolist() == prompt and prompt[-1] == 3  # the open <think>


def test_turns_of_an_unchanged_history_share_one_row():
    messages = [user("a"), assistant("one"), user("b"), assistant("two"), user("c"), assistant("three")]
    rows, _, tokenizer = token_rows([generated_row(messages)])
    assert len(rows) == 1 and spoken(tokenizer, rows[0]) == ["one" + END, "two" + END, "three" + END]
    whole = render_messages(tokenizer, messages, add_generation_prompt=False)
    assert tokenizer.decode(rows[0].input_ids.tolist()) + "\n" == whole


def test_answer_that_merges_with_the_header_in_history_begins_a_new_row():
    # "assistant\n" + "\n..." may be other tokens than the two apart: then turn 2 never saw the ids of turn 1
    tokenizer = small_tokenizer()
    messages = [user("a"), assistant("\n\nx"), user("b"), assistant("y")]
    together = tokenizer.encode("assistant\n\n\nx", add_special_tokens=False)
    apart = tokenizer.encode("assistant\n", add_special_tokens=False) + tokenizer.encode("\n\nx")
    rows, _, _ = token_rows([generated_row(messages)])
    assert len(rows) == (1 if together == apart else 2)
    assert rows[-1].input_ids[: rows[-1].spans[-1][0]].tolist() == render_prompt(tokenizer, messages[:3])


def test_tool_calls_and_results_are_prompt_and_calls_are_spans():
    asked = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", '{"city": "Paris"}')]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    messages = [user("Weather?"), asked, result, assistant("Sunny.")]
    row = generated_row(messages, finish="tool_calls", tools=[WEATHER])
    for template, spelled in (
        (TOOLS, '<tool>get_weather{"city": "Paris"}</tool>'),
        (CHATML, '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>'),
    ):
        rows, work, tokenizer = token_rows([row], template)
        assert [text for r in rows for text in spoken(tokenizer, r)] == [spelled + END, "Sunny." + END]
        assert len(rows) == 1 and not work.dropped
        assert "sunny" not in "".join(spoken(tokenizer, rows[0]))


def test_an_answer_cut_by_length_has_no_end_token_in_its_span():
    messages = [user("a"), assistant("half a sente"), user("go on"), assistant("nce")]
    rows, work, tokenizer = token_rows([generated_row(messages, finish="length")])
    assert spoken(tokenizer, rows[0]) == ["half a sente", "nce"]
    assert rows[0].input_ids[rows[0].spans[0][1]] == 2  # the end token is there, as prompt
    assert work.counted["cut_by_length"] == 2


def test_server_ids_win_over_rendering_and_are_counted():
    tokenizer = small_tokenizer()
    messages = [user("hello"), assistant("the lazy dog")]
    generated = [tokenizer.encode(letter)[0] for letter in "the lazy dog"] + [2]  # sampled letter by letter
    assert generated != tokenizer.encode("the lazy dog") + [2]
    prompt = render_prompt(tokenizer, messages[:1])
    same = generated_row(messages, token_ids=[generated], prompt_token_ids=[prompt])
    rows, work, _ = token_rows([same])
    assert rows[0].input_ids.tolist() == prompt + generated and rows[0].spans == [(len(prompt), len(prompt) + 13)]
    assert work.counted["rerendered_differs"] == 0 and work.counted["server_token_ids"] == 1
    rows, work, _ = token_rows([generated_row(messages, token_ids=[generated], prompt_token_ids=[[1, 9, *prompt]])])
    assert rows[0].input_ids.tolist() == [1, 9, *prompt, *generated] and work.counted["rerendered_differs"] == 1


def test_turns_with_server_ids_share_a_row_only_if_the_server_kept_its_ids():
    tokenizer = small_tokenizer()
    messages = [user("hello"), assistant("the lazy dog"), user("and?"), assistant("the fox")]
    sampled = [tokenizer.encode(letter)[0] for letter in "the lazy dog"] + [2]
    first, last = render_prompt(tokenizer, messages[:1]), [*tokenizer.encode("the fox"), 2]
    rendered = render_prompt(tokenizer, messages[:3])  # what a stateless server sees: the text, tokenized anew
    rest = rendered[rendered.index(2, len(first)) + 1 :]
    for second, expected in ((first + sampled + rest, 1), (rendered, 2)):
        row = generated_row(messages, token_ids=[sampled, last], prompt_token_ids=[first, second])
        rows, work, _ = token_rows([row])
        assert [len(row.spans) for row in rows] == ([2] if expected == 1 else [1, 1])
        assert rows[-1].input_ids.tolist() == second + last
        assert work.counted["history_rewritten"] == (expected == 2) and not work.dropped


def test_server_ids_without_an_end_are_counted():
    tokenizer = small_tokenizer()
    row = generated_row([user("x"), assistant("the fox")], token_ids=[tokenizer.encode("the fox")])
    rows, work, _ = token_rows([row])
    assert spoken(tokenizer, rows[0]) == ["the fox"] and work.counted["no_end_token"] == 1


@pytest.mark.parametrize(
    ("messages", "more", "reason"),
    [
        ([user("say <|im_end|> please"), assistant("no")], {}, "special_token_in_text"),
        ([user("x"), assistant("a <|endoftext|> b")], {}, "special_token_in_text"),
        ([{"role": "system", "content": "<think>"}, user("x"), assistant("ab")], {}, "special_token_in_text"),
        ([user("x"), assistant("a \ud83d b")], {}, "not_unicode"),
        ([user("x"), assistant("")], {}, "no_trained_slot"),
        ([user("x"), assistant("a", reasoning="b")], {}, "answer_not_rendered"),
        ([user("x"), assistant("other text")], {"token_ids": [[70, 71, 2]]}, "ids_differ_from_text"),
        ([user("x"), assistant("a")], {"token_ids": [[70, 2, 71, 2]]}, "end_token_inside"),
        ([user("long " * 3000), assistant("ab")], {}, "prompt_over_max_length"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_dropped_counted_and_named(messages, more, reason, capsys):
    good = generated_row([user("a"), assistant("fine")], index=1)
    rows, work, _ = token_rows([generated_row(messages, **more), good])
    assert [row.id for row in rows] == ["r1"]
    assert dict(work.dropped) == {reason: 1}
    assert f"generated/d.jsonl.zst: row r0 dropped: {reason}" in capsys.readouterr().err


def test_special_token_in_a_tool_declaration_is_found():
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}
    _, work, _ = token_rows([generated_row([user("x"), assistant("ab")], tools=[tool])])
    assert work.dropped == {"special_token_in_text": 1}


def test_empty_answer_cut_by_length_is_counted():
    _, work, _ = token_rows([generated_row([user("x"), assistant("")], finish="length")])
    assert work.dropped == {"empty_answer": 1}


def test_a_conversation_the_template_refuses_is_dropped():
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    bad = generated_row([{"role": "system", "content": "s"}, user("x"), assistant("ab")])
    rows, work, _ = token_rows([bad, generated_row([user("x"), assistant("ab")], index=1)], template)
    assert work.dropped == {"template_refused": 1} and len(rows) == 1


def test_an_answer_that_encoding_changes_is_dropped():
    from tokenizers import normalizers

    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    work = Tokenizing(tokenizer, settings_of(), len(tokenizer), "generated/d.jsonl.zst")
    rows = [generated_row([user("Q"), assistant("Loud")]), generated_row([user("Q"), assistant("quiet")], index=1)]
    assert [row.id for row in work.rows(rows)] == ["r1"]
    assert work.dropped == {"text_not_reproduced": 1}


def test_long_rows_end_with_the_last_span_that_fits():
    row = Draft(0, list(range(20)), [(3, 6), (9, 12), (15, 20)])
    assert cut(row, 20) == (row, None)
    assert cut(row, 19) == (Draft(0, list(range(12)), [(3, 6), (9, 12)]), "cut_at_span_end")
    assert cut(row, 6) == (Draft(0, list(range(6)), [(3, 6)]), "cut_at_span_end")
    assert cut(row, 5) == (Draft(0, list(range(5)), [(3, 5)]), "cut_inside_span")
    assert cut(row, 3) == (None, None)


def test_turns_join_only_when_the_prompt_begins_with_all_before():
    one, two = Turn(0, [1, 2], [3, 4]), Turn(1, [1, 2, 3, 4, 5], [6])
    assert join_turns([one, two]) == [Draft(0, [1, 2, 3, 4, 5, 6], [(2, 4), (5, 6)])]
    rewritten = Turn(1, [1, 2, 4, 5], [6])
    assert join_turns([one, rewritten]) == [Draft(0, [1, 2, 3, 4], [(2, 4)]), Draft(1, [1, 2, 4, 5, 6], [(4, 5)])]


def run_stage(folder, count, template=CHATML, rows=None, **changes):
    tokenizer = small_tokenizer(template)
    source = folder / f"generated{count}.jsonl.zst"
    if rows is None:
        rows = [generated_row([user(f"question {i}"), assistant(f"answer {i} 🙂")], index=i) for i in range(count)]
    write_jsonl_zst(source, rows)
    output = folder / f"tokens{count}"
    tokenize(settings_of(rows=count, **changes), source, tokenizer, target="fp", vocab_size=400, output=output)
    return output


def test_a_larger_dataset_leaves_full_shards_byte_identical(tmp_path):
    small, large = run_stage(tmp_path, 10), run_stage(tmp_path, 15)
    names = sorted(path.name for path in small.glob("*.parquet"))
    assert names == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert sorted(path.name for path in large.glob("*.parquet")) == [*names, "00003.parquet"]
    for name in names[:2]:
        assert (small / name).read_bytes() == (large / name).read_bytes()
    assert (small / names[2]).read_bytes() != (large / names[2]).read_bytes()


def test_the_same_run_gives_the_same_bytes_and_removes_stale_shards(tmp_path):
    first = {path.name: path.read_bytes() for path in run_stage(tmp_path, 10).iterdir()}
    (tmp_path / "tokens10" / "00009.parquet").write_bytes(b"of a larger dataset")
    assert {path.name: path.read_bytes() for path in run_stage(tmp_path, 10).iterdir()} == first


def test_shards_hold_fixed_index_ranges_and_may_be_empty(tmp_path):
    rows = [generated_row([user("q"), assistant(f"answer {i}")], index=i) for i in (1, 9)]
    manifest = read_manifest(run_stage(tmp_path, 12, rows=rows))
    assert [entry.rows for entry in manifest.shards] == [1, 0, 1]
    assert manifest.read(manifest.shards[2]).index.tolist() == [9]
    assert manifest.special == (0, 1, 2, 3, 4)
    assert (manifest.dataset, manifest.target, manifest.counted["conversations"]) == ("d", "fp", 2)


def test_repeated_answers_and_rewritten_turns_share_an_index(tmp_path):
    again = {**generated_row([user("q"), assistant("another answer")]), "id": "r0#r1"}
    manifest = read_manifest(run_stage(tmp_path, 1, rows=[generated_row([user("q"), assistant("one")]), again]))
    shard = manifest.read(manifest.shards[0])
    assert shard.ids == ["r0", "r0#r1"] and shard.index.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"index": 7}, "row r0: index 7 is not in order or not below the dataset's 1 rows"),
        ({"answers": [{"turn": 0, "message": 0, "finish_reason": "stop"}]}, "row r0: answer names message 0"),
        ({"answers": [{"turn": 0, "message": 1}]}, "row r0: not a generated row .*finish_reason"),
        ({"answers": [{"turn": 0, "message": 1, "finish_reason": "stop", "token_ids": [400]}]}, "another model"),
        ({"messages": [user("<|im_end|>"), assistant("ab")]}, "no row can be trained on; .*special_token_in_text"),
    ],
)
def test_impossible_input_names_file_and_row(tmp_path, change, says):
    row = {**generated_row([user("q"), assistant("ab")]), **change}
    with pytest.raises(InputError, match=f"generated1.jsonl.zst: .*{says}" if "no row" not in says else says):
        run_stage(tmp_path, 1, rows=[row])


def test_spans_never_reach_over_the_row(tmp_path):
    manifest = read_manifest(run_stage(tmp_path, 9, max_length=22))
    assert manifest.counted["cut_inside_span"] > 0
    for entry in manifest.shards:
        shard = manifest.read(entry)
        assert np.diff(shard.offsets).max(initial=0) <= 22
        assert entry.trained_tokens == shard.trained().sum()
    assert json.loads((manifest.folder / "manifest.json").read_text())["format"] == "eyrie-tokens-1"
