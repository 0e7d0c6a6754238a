"""`eyrie tokenize` and `eyrie corpus` as the rules call them, from a receipt and generated conversations."""

import json

import pytest

from eyrie.cli import main
from eyrie.corpus import read_corpus
from eyrie.files import canonical_json, sha256_file, write_jsonl_zst
from eyrie.target import TargetReceipt
from tests.chat.small import SPECIAL, assistant, small_tokenizer, user

CORPUS = canonical_json({"corpus": {"holdout": 0.25, "seed": 0}, "drafter": {"draft_vocab_size": 40}})


def tokenize_slice(name="d"):
    return canonical_json({"tokenize": {"rows_per_shard": 8, "max_length": 512}, "dataset": {"name": name, "rows": 20},
                           "target": {"thinking": None, "trust_remote_code": False}})  # fmt: skip


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """A receipt of a small target, and 20 generated conversations."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")  # the command sets them; restored afterwards
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    folder = tmp_path / "target"
    small_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    files = {path.name: sha256_file(path) for path in folder.iterdir()}
    TargetReceipt("small", str(folder), "fp", files, "LlamaForCausalLM", 2, 8, 400, 512).write(tmp_path / "target.json")
    rows = [
        {"id": f"r{i}", "index": i, "messages": [user(f"question {i}"), assistant(f"The quick brown answer {i} 🙂")],
         "answers": [{"turn": 0, "message": 1, "finish_reason": "stop"}], "source": {}}
        for i in range(20)
    ]  # fmt: skip
    write_jsonl_zst(tmp_path / "generated.jsonl.zst", rows)
    return tmp_path


def tokenize(folder, name="d"):
    return main(["tokenize", "--slice", tokenize_slice(name), "--generated", f"{folder}/generated.jsonl.zst",
                 "--target", f"{folder}/target.json", "--output", f"{folder}/tokens/{name}",
                 "--threads", "1"])  # fmt: skip


def corpus(folder, *names):
    return main(["corpus", "--slice", CORPUS, "--target", f"{folder}/target.json", "--tokens",
                 *[f"{folder}/tokens/{name}" for name in names], "--output", f"{folder}/corpus"])  # fmt: skip


def test_conversations_become_a_corpus(run_folder, capsys):
    assert tokenize(run_folder) == 0 and tokenize(run_folder, "again") == 0
    assert "tokenize: d: 20 rows in 3 shards" in capsys.readouterr().err
    assert corpus(run_folder, "d", "again") == 0
    assert "draft vocabulary of 40 of 400 tokens covers" in capsys.readouterr().err
    found = read_corpus(run_folder / "corpus")
    stats = found.manifest["datasets"]
    assert stats["again"]["duplicates"] == 20 and stats["d"]["train_rows"] + stats["d"]["holdout_rows"] == 20
    assert found.target == "fp" and found.t2d[: len(SPECIAL)].all()
    assert [row.dataset for row in found.rows] == ["d"] * 20


def test_wrong_input_ends_with_one_line_and_code_2(run_folder, capsys):
    assert main(["tokenize", "--slice", CORPUS, "--generated", "x", "--target", "x", "--output", "x"]) == 2
    assert "has no dataset; print one with `eyrie config --slice tokenize" in capsys.readouterr().err
    assert corpus(run_folder, "d") == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and "tokens/d/manifest.json: no such file" in error[0] and "snakemake" in error[0]


@pytest.mark.parametrize("command", ["tokenize", "corpus"])
def test_help_shows_an_example(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"example: eyrie {command} --slice" in capsys.readouterr().out
