"""`eyrie evaluate` on a whole tiny run: a real target, tokenizer, trained drafter, states and prompt file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eyrie.cli import main
from eyrie.evaluate import command
from eyrie.evaluate.packed_engine import PackedEngine
from eyrie.evaluate.transformers_engine import TransformersEngine
from eyrie.files import canonical_json, read_json, sha256_file, write_jsonl_zst
from eyrie.report.facts import read_evaluation
from tests.chat.small import CHATML
from tests.train.tiny_run import TinyRun

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CLAIMS = ("prompts", "tokens", "slots", "slot_mean", "chain_replay", "greedy_share", "decode")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, 259 in all: fewer than the tiny target has."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate([*SPECIAL, *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], chat_template=CHATML)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyRun]:
    threads = torch.get_num_threads()
    made = TinyRun(tmp_path_factory.mktemp("evaluate"))
    byte_tokenizer().save_pretrained(made.folder / "target")
    rows = [{"id": f"q{i}", "index": i, "messages": [{"role": "user", "content": f"say {i}"}]} for i in range(5)]
    write_jsonl_zst(made.folder / "bench.jsonl.zst", rows)
    assert main(made.arguments()) == 0
    yield made
    torch.set_num_threads(threads)


def arguments(run: TinyRun, output: Path, dtype: str = "float32", **evaluate: object) -> list[str]:
    settings = {"chain_length": 3, "chain_lengths": [3, 5], "max_new_tokens": 12, "rows": 3, "width": 2} | evaluate
    target = {"dtype": dtype, "trust_remote_code": False, "thinking": None}
    at = run.folder
    return [
        "evaluate", "--slice", canonical_json({"evaluate": settings, "target": target}),
        "--target", f"{at}/target.json", "--drafter", f"{at}/out/drafter", "--corpus", f"{at}/corpus",
        "--tokens", *(f"{at}/tokens/{name}" for name in run.manifests),
        "--hidden", *(f"{at}/hidden/{name}" for name in run.manifests),
        "--benchmarks", f"bench={at}/bench.jsonl.zst", "--threads", "1", "--output", str(output),
    ]  # fmt: skip


def test_evaluation_holds_every_figure_and_the_same_bytes_twice(run: TinyRun, tmp_path: Path) -> None:
    assert main(arguments(run, tmp_path / "a.json")) == 0
    value = read_evaluation(tmp_path / "a.json")
    assert set(value["sets"]) == {"holdout", "bench"}
    assert value["lossless"] is True and value["chain_length"] == 3
    assert value["drafter"] == sha256_file(run.folder / "out" / "drafter" / "model.safetensors")
    assert value["compared_tokens"] == sum(entry["tokens"] for entry in value["sets"].values())
    holdout = value["sets"]["holdout"]
    assert set(holdout["per_dataset"]) == {"code", "tools"}
    for entry in (*value["sets"].values(), *holdout["per_dataset"].values()):
        assert set(CLAIMS) <= set(entry)
        assert set(entry["slot_mean"]) == set(entry["chain_replay"]) == {"3", "5"}
    assert holdout["prompts"] == 3 and 0 < holdout["tokens"] <= 36
    assert sum(part["prompts"] for part in holdout["per_dataset"].values()) == 3
    bench = value["sets"]["bench"]
    assert bench["greedy_share"] == 1.0
    assert bench["chain_replay"]["3"] == bench["decode"]["3"]["acceptance_length"]
    assert main(arguments(run, tmp_path / "b.json")) == 0
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()


def test_both_engines_decode_the_same_and_width_does_not_matter(
    run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    for engine in (PackedEngine, TransformersEngine):
        original = engine.__init__

        def spy(self, *args, _original=original, _engine=engine) -> None:
            used.append(_engine)
            _original(self, *args)

        monkeypatch.setattr(engine, "__init__", spy)
    assert main(arguments(run, tmp_path / "packed.json", width=1)) == 0
    monkeypatch.setattr("eyrie.target.llama.check_supported", refuse)
    assert main(arguments(run, tmp_path / "general.json", width=8)) == 0
    assert used == [PackedEngine, TransformersEngine]
    assert read_json(tmp_path / "packed.json") == read_json(tmp_path / "general.json")


def refuse(config: dict, where: str) -> None:
    from eyrie.errors import InputError

    raise InputError(f"{where}: not for this engine")


def test_a_decode_that_differs_fails_the_job_and_leaves_no_file(
    run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extend = PackedEngine.extend

    def wrong_place(self, cache, rows, tokens):
        """Verification blocks stand one position too early."""
        late = tokens.shape[1] == 4
        cache.lengths[rows] -= int(late)
        block = extend(self, cache, rows, tokens)
        cache.lengths[rows] += int(late)
        return block

    monkeypatch.setattr(PackedEngine, "extend", wrong_place)
    assert main(arguments(run, tmp_path / "out.json")) == 1
    error = capsys.readouterr().err
    assert "holdout: speculative decoding is not lossless: prompt " in error and "logits differ by" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--benchmarks", "bench"], "must be NAME=FILE"),
        (["--benchmarks", "holdout=x"], "the name holdout is taken"),
        (["--benchmarks", "b=/nowhere/x.jsonl.zst"], "no such file"),
        (["--gpus", "64"], "64 GPUs"),
    ],
)
def test_wrong_arguments_are_said_in_one_line(
    run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], message: str
) -> None:
    code = main([*arguments(run, tmp_path / "out.json"), *change])
    assert code == (3 if "--gpus" in change else 2)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("eyrie evaluate: error: ") and message in last


def test_a_dataset_without_its_folder_is_named(
    run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(run, tmp_path / "out.json")
    words.remove(f"{run.folder}/hidden/tools")
    assert main(words) == 2
    assert "dataset tools has held-out rows" in capsys.readouterr().err


def test_answers_that_cannot_fit_the_context_say_which_setting(
    run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(run, tmp_path / "out.json", max_new_tokens=600)) == 2
    assert "lower evaluate.max_new_tokens" in capsys.readouterr().err


def test_help_says_what_the_figures_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    out = capsys.readouterr().out
    assert all(word in out for word in ("slot mean", "chain replay", "decode", "--benchmarks"))
    assert command.__doc__ and command.__doc__.splitlines()[0] in out
