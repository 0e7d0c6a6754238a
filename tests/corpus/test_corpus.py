"""The corpus: no held-out prompt trains, every row once, and a draft vocabulary that engines read back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyrie.corpus import read_corpus
from eyrie.corpus.holdout import held_out
from eyrie.corpus.merge import merge
from eyrie.corpus.vocabulary import choose, coverage
from eyrie.errors import InputError
from eyrie.shards.slots import trained_slots
from eyrie.shards.tokens import TokenRow, read_manifest, write_manifest, write_shard

V = 200


def row(index, prompt, answer, *, turn=0, name=None):
    ids = np.array([*prompt, *answer], np.int32)
    return TokenRow(name or f"r{index}", index, turn, ids, [(len(prompt), len(ids))])


def random_rows(count, seed):
    random = np.random.default_rng(seed)
    return [
        row(i, random.integers(5, V, 4).tolist(), (random.zipf(1.5, random.integers(3, 12)) % V).tolist())
        for i in range(count)
    ]


def dataset(folder, name, rows, size=16, target="fp", special=(0, 1, 199)):
    out = folder / "tokens" / name
    last = max((r.index for r in rows), default=0)
    entries = [
        write_shard(out / f"{k:05d}.parquet", [r for r in rows if k * size <= r.index < (k + 1) * size],
                    dataset=name, target=target)
        for k in range(last // size + 1)
    ]  # fmt: skip
    write_manifest(out, dataset=name, target=target, slice={}, shards=entries, dropped={}, counted={},
                   special=special)  # fmt: skip
    return out


def build(folder, *tokens, holdout=0.2, size=64, seed=0, output="corpus"):
    cfg = {"corpus": {"holdout": holdout, "seed": seed}, "drafter": {"draft_vocab_size": size}}
    merge(cfg, tokens, target="fp", vocab_size=V, output=folder / output)
    return read_corpus(folder / output)


def rows_of(corpus, split, tokens):
    """The token rows of one split, read back through the places that the corpus names."""
    manifests = {folder.name: read_manifest(folder) for folder in tokens}
    for place in corpus.split(split):
        manifest = manifests[place.dataset]
        entry = next(entry for entry in manifest.shards if entry.name == place.shard)
        found = manifest.read(entry).row(place.row)
        assert (found.id, len(found.input_ids)) == (place.id, place.tokens)
        assert trained_slots(found.spans, place.tokens, 0).sum() == place.trained
        yield found


def prompts(rows):
    return {tuple(r.input_ids[: r.spans[0][0]].tolist()) for r in rows}


def test_nothing_in_the_holdout_shares_a_prompt_with_train(tmp_path):
    random = np.random.default_rng(0)
    asked = [random.integers(5, V, 4).tolist() for _ in range(30)]  # few prompts, so datasets and rows share them

    def answers(count, seed):
        r = np.random.default_rng(seed)
        return [row(i, asked[r.integers(30)], r.integers(5, V, 6).tolist()) for i in range(count)]

    tokens = [dataset(tmp_path, "a", answers(60, 1)), dataset(tmp_path, "b", answers(60, 2))]
    corpus = build(tmp_path, *tokens)
    train, held = prompts(rows_of(corpus, "train", tokens)), prompts(rows_of(corpus, "holdout", tokens))
    assert train and held and not train & held


def test_all_turns_and_repeated_answers_of_a_prompt_lie_on_one_side(tmp_path):
    rows = []
    for i in range(40):
        first = [i + 5, 7, 8]
        rows += [row(i, first, [1, 2, 3 + i]), row(i, [*first, 1, 9], [4, 5, i], turn=1)]
        rows += [row(i, first, [2, 2, 3 + i], name=f"r{i}#r1")]
    tokens = [dataset(tmp_path, "a", rows)]
    corpus = build(tmp_path, *tokens, holdout=0.5)
    sides = {}
    for place in corpus.rows:
        sides.setdefault(place.id.split("#")[0], set()).add(place.split)
    assert len(sides) == 40 and all(len(side) == 1 for side in sides.values())
    assert len(corpus.rows) == 120


def test_a_training_row_that_reaches_a_held_out_prompt_another_way_is_left_out(tmp_path):
    # Both conversations come to the prompt [50, 51], but their first prompts differ.
    rows = [r for i in range(20) for r in (row(i, [10 + i], [1, 2, 3]), row(i, [50, 51], [4, 5, i], turn=1))]
    tokens = [dataset(tmp_path, "a", rows)]
    corpus = build(tmp_path, *tokens, holdout=0.3)
    assert corpus.manifest["datasets"]["a"]["shared_prompt"] > 0
    assert not prompts(rows_of(corpus, "train", tokens)) & prompts(rows_of(corpus, "holdout", tokens))


def test_equal_rows_are_kept_once_and_the_first_dataset_wins(tmp_path):
    rows = random_rows(20, 1)
    again = [TokenRow(f"x{r.index}", r.index, 0, r.input_ids, r.spans) for r in rows]
    other_span = [TokenRow("y", 30, 0, rows[0].input_ids, [(rows[0].spans[0][0] + 1, rows[0].spans[0][1])])]
    corpus = build(tmp_path, dataset(tmp_path, "a", rows), dataset(tmp_path, "b", [*again, *other_span]))
    assert {r.id for r in corpus.rows} == {f"r{i}" for i in range(20)} | {"y"}
    assert corpus.manifest["datasets"]["b"]["duplicates"] == 20


def test_growing_the_corpus_moves_no_prompt_between_the_sides(tmp_path):
    rows = random_rows(80, 1)
    small = build(tmp_path / "s", dataset(tmp_path / "s", "a", rows[:40]))
    large = build(tmp_path / "l", dataset(tmp_path / "l", "a", rows), dataset(tmp_path / "l", "b", random_rows(9, 2)))
    sides = {(r.dataset, r.id): r.split for r in large.rows}
    assert all(sides[r.dataset, r.id] == r.split for r in small.rows)


def test_another_seed_holds_out_other_prompts(tmp_path):
    tokens = dataset(tmp_path, "a", random_rows(80, 1))
    one, two = build(tmp_path, tokens, output="one"), build(tmp_path, tokens, seed=1, output="two")
    assert {r.id for r in one.split("holdout")} != {r.id for r in two.split("holdout")}


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 2**64 - 1), min_size=2, max_size=12), st.floats(0.001, 0.999))
def test_neither_side_is_ever_empty(keys, share):
    out = held_out(keys, share)
    assert 0 < len(out) < len(keys)
    assert max(out) < min(keys - out)


def test_about_the_asked_share_is_held_out():
    keys = [int(k) for k in np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)]
    assert abs(len(held_out(keys, 0.1)) / 4000 - 0.1) < 0.02


def test_one_prompt_is_no_corpus(tmp_path):
    with pytest.raises(InputError, match="1 distinct prompts"):
        build(tmp_path, dataset(tmp_path, "a", [row(0, [9], [1, 2, 3]), row(1, [9], [3, 2, 1])]))


def test_counts_are_the_labels_of_trained_slots_of_the_train_split(tmp_path):
    tokens = [dataset(tmp_path, "a", random_rows(50, 1)), dataset(tmp_path, "b", random_rows(30, 2))]
    corpus = build(tmp_path, *tokens, size=8)
    expected = {"train": np.zeros(V, np.int64), "holdout": np.zeros(V, np.int64)}
    for split, counts in expected.items():
        for found in rows_of(corpus, split, tokens):
            for slot in np.nonzero(trained_slots(found.spans, len(found.input_ids), 0))[0]:
                counts[found.input_ids[slot + 2]] += 1
    assert np.array_equal(corpus.vocabulary.counts, expected["train"])
    manifest, inside = corpus.manifest, corpus.t2d
    assert manifest["coverage"] == pytest.approx(expected["train"][inside].sum() / expected["train"].sum())
    assert manifest["holdout_coverage"] == pytest.approx(expected["holdout"][inside].sum() / expected["holdout"].sum())
    assert manifest["coverage"] < 1
    trained = sum(stats["trained_tokens"] for stats in manifest["datasets"].values())
    assert trained == expected["train"].sum()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_draft_vocabulary_round_trip(data):
    total = data.draw(st.integers(2, 60))
    counts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=total, max_size=total)), np.int64)
    forced = data.draw(st.sets(st.integers(0, total + 3), max_size=6))
    inside = {index for index in forced if index < total}
    size = data.draw(st.integers(max(1, len(inside)), total))
    vocabulary = choose(counts, size, forced)
    assert len(vocabulary.d2t) == size and vocabulary.d2t.dtype == np.int64 and vocabulary.t2d.dtype == np.bool_
    assert np.array_equal(np.nonzero(vocabulary.t2d)[0], np.arange(size) + vocabulary.d2t)
    assert (np.diff(vocabulary.target_ids) > 0).all()
    assert vocabulary.t2d[sorted(inside)].all()
    # every free place went to the most counted token, the lowest id among equals
    free = [index for index in range(total) if index not in inside]
    ranked = sorted(free, key=lambda index: (-counts[index], index))[: size - len(inside)]
    assert set(np.nonzero(vocabulary.t2d)[0]) == inside | set(ranked)


def test_draft_vocabulary_may_be_the_whole_vocabulary_but_not_more():
    counts = np.zeros(10, np.int64)
    assert not choose(counts, 10, [3]).d2t.any()
    with pytest.raises(InputError, match="draft_vocab_size=11 is more than the target's 10"):
        choose(counts, 11, [3])
    with pytest.raises(InputError, match="draft_vocab_size=2 is less than the 3 special"):
        choose(counts, 2, [1, 2, 3])
    assert coverage(counts, choose(counts, 5, []).t2d) is None


def test_special_tokens_are_inside_though_never_seen(tmp_path):
    corpus = build(tmp_path, dataset(tmp_path, "a", random_rows(50, 1)), size=8)
    assert corpus.t2d[[0, 1, 199]].all() and corpus.vocabulary.counts[199] == 0
    assert corpus.manifest["draft_vocab_size"] == 8


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    tokens = dataset(tmp_path, "a", random_rows(50, 1))
    one, two = build(tmp_path, tokens, output="one"), build(tmp_path, tokens, output="two")
    for name in ("rows.parquet", "vocab.safetensors", "manifest.json"):
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_empty_shards_and_datasets_are_fine(tmp_path):
    empty = dataset(tmp_path, "empty", [])
    corpus = build(tmp_path, dataset(tmp_path, "a", random_rows(3, 1) + [row(40, [9, 9], [1, 2, 3])]), empty)
    assert corpus.manifest["datasets"]["empty"]["train_rows"] == 0 and len(corpus.rows) == 4


def test_token_folders_of_another_target_or_another_vocabulary_are_refused(tmp_path):
    rows = random_rows(5, 1)
    with pytest.raises(InputError, match="tokens/a: was tokenized for target other"):
        build(tmp_path, dataset(tmp_path, "a", rows, target="other"))
    with pytest.raises(InputError, match="00000.parquet: a token id is not within"):
        build(tmp_path, dataset(tmp_path, "b", [*rows, row(9, [V], [1, 2, 3])]))
    good = dataset(tmp_path, "c", rows)
    with pytest.raises(InputError, match="tokens/none/manifest.json: names no special token"):
        build(tmp_path, dataset(tmp_path, "none", rows, special=()))
    with pytest.raises(InputError, match="tokens/d: holds dataset c"):
        build(tmp_path, good.rename(good.with_name("d")))
    good = dataset(tmp_path, "c", rows)
    with pytest.raises(InputError, match="given twice"):
        build(tmp_path, good, good)


def test_a_changed_or_missing_file_is_refused(tmp_path):
    tokens = dataset(tmp_path, "a", random_rows(20, 1))
    corpus = build(tmp_path, tokens)
    corpus.check_tokens("a", tokens)
    with pytest.raises(InputError, match="knows no dataset b"):
        corpus.check_tokens("b", tokens)
    path = corpus.folder / "vocab.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    with pytest.raises(InputError, match=r"vocab.safetensors: its content .*snakemake --forcerun corpus"):
        read_corpus(corpus.folder)
    path.unlink()
    with pytest.raises(InputError, match="vocab.safetensors: no such file"):
        read_corpus(corpus.folder)
    dataset(tmp_path, "a", random_rows(21, 1))
    with pytest.raises(InputError, match="is not what .* was made from"):
        corpus.check_tokens("a", tokens)
