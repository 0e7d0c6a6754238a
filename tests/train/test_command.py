"""`eyrie train` in real processes: what it writes, that a kill changes no byte, that wrong inputs are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from eyrie.cli import main
from eyrie.drafter import load_drafter
from eyrie.files import read_json, write_json
from eyrie.shards.aux import AuxLayers
from eyrie.target import load_receipt
from tests.train.tiny_run import TinyRun

OUTPUTS = ("drafter/config.json", "drafter/model.safetensors", "train.jsonl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run that was trained once, uninterrupted, into `whole/`."""
    torch.set_num_threads(1)
    made = TinyRun(tmp_path_factory.mktemp("run"))
    assert main(made.arguments("whole")) == 0
    return made


def outputs(run: TinyRun, name: str) -> list[bytes]:
    return [(run.folder / name / path).read_bytes() for path in OUTPUTS]


def spawn(run: TinyRun, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "eyrie", *arguments], stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_for_checkpoint(store: Path, process: subprocess.Popen[bytes], number: int) -> None:
    end = time.monotonic() + 120
    while not list(store.glob(f"*/checkpoint-{number:08d}.safetensors")):
        assert process.poll() is None and time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.005)


def test_a_run_killed_in_the_middle_ends_with_the_same_bytes(run: TinyRun) -> None:
    arguments = run.arguments("killed", "killed_store")
    process = spawn(run, *arguments)
    try:
        wait_for_checkpoint(run.folder / "killed_store", process, 5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    entry = next((run.folder / "killed_store").iterdir())
    assert not (entry / "done.json").exists() and not (run.folder / "killed" / "drafter").exists()
    assert main(run.arguments("killed", "killed_store")) == 0
    assert outputs(run, "killed") == outputs(run, "whole")


def test_every_checkpoint_leads_to_the_same_bytes(run: TinyRun) -> None:
    """Resume from an older checkpoint, after junk that a dying process left in log and folder."""
    assert main(run.arguments("again", "again_store")) == 0
    entry = next((run.folder / "again_store").iterdir())
    (entry / "done.json").unlink()
    newest = entry / "checkpoint-00000024.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])  # damaged: the one before must serve
    (entry / ".checkpoint-00000022.safetensors.x.tmp").write_bytes(b"half")
    with open(entry / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 23, "lo')
    assert main(run.arguments("again", "again_store")) == 0
    assert outputs(run, "again") == outputs(run, "whole")


def test_sigterm_saves_the_step_under_way_and_a_rerun_goes_on(run: TinyRun) -> None:
    store = run.folder / "term_store"
    process = spawn(run, *run.arguments("term", "term_store", checkpoint_every=7))
    try:
        wait_for_checkpoint(store, process, 7)
        process.terminate()
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and b"run it again to go on" in stderr
    assert main(run.arguments("term", "term_store", checkpoint_every=7)) == 0
    assert outputs(run, "term") == outputs(run, "whole")  # checkpoint_every is no part of a run's identity


def test_a_finished_run_is_found_and_only_exported(run: TinyRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run.arguments("found")) == 0
    assert "is finished; exporting it" in capsys.readouterr().err
    assert outputs(run, "found") == outputs(run, "whole")


def test_a_finished_run_whose_files_changed_is_made_again(run: TinyRun) -> None:
    entry = next((run.folder / "store").iterdir())
    (entry / "drafter" / "config.json").write_text("{}")
    assert main(run.arguments("found")) == 0
    assert outputs(run, "found") == outputs(run, "whole")


def test_training_lowers_the_loss_and_logs_every_step(run: TinyRun) -> None:
    lines = [json.loads(line) for line in (run.folder / "whole" / "train.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 24 and np.mean(losses[-6:]) < 0.9 * np.mean(losses[:6])
    assert [line["step"] for line in lines if "eval" in line] == [10, 20, 24]
    assert all(len(line["loss_step"]) == 3 for line in lines if "loss" in line)


def test_no_held_out_row_is_trained_on(run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from eyrie.train import data as module

    read: list[tuple[str, str]] = []
    original = module.Data.read_all

    def spy(self: module.Data, rows: list) -> list:
        rows = list(rows)
        read.extend((row.split, row.id) for row in rows)
        return original(self, rows)

    monkeypatch.setattr(module.Data, "read_all", spy)
    assert main(run.arguments("spied", "spied_store", evaluate_every=1000)) == 0
    held = {f"{name}{number}" for name in ("code", "tools") for number in (5, 11)}
    trained = {id_ for split, id_ in read if split == "train"}
    assert {id_ for split, id_ in read if split == "holdout"} == held  # the look at the hold-out after the last step
    assert len(trained) == 20 and not trained & held


def test_the_head_is_trained_only_when_asked(run: TinyRun) -> None:
    target = load_receipt(run.folder / "target.json")
    frozen = load_drafter(run.folder / "whole" / "drafter", target)
    assert torch.equal(frozen.lm_head.weight, frozen.embed_tokens.weight[frozen.t2d])  # the tiny target ties them
    assert main(run.arguments("head", "head_store", freeze_head=False, steps=6)) == 0
    trained = load_drafter(run.folder / "head" / "drafter", target)
    assert not torch.equal(trained.lm_head.weight, frozen.lm_head.weight)


def test_nan_stops_the_run_and_names_the_rows(
    run: TinyRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eyrie.train import stage

    original = stage.pack

    def poisoned(examples: list, steps: int) -> object:
        batch = original(examples, steps)
        if "code3" in " ".join(batch.ids):
            batch.aux[0, 0] = float("nan")
        return batch

    monkeypatch.setattr(stage, "pack", poisoned)
    assert main(run.arguments("nan", "nan_store")) == 1
    error = capsys.readouterr().err
    assert "loss nan; rows of this step:" in error and "(code3)" in error
    assert not (run.folder / "nan").exists()


def test_states_before_the_final_norm_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TinyRun._states

    def before_norm(self: TinyRun, ids: np.ndarray, aux: object) -> object:
        row = original(self, ids, aux)
        return type(row)(row.aux, row.final * 0.05, row.argmax, row.logsumexp)

    monkeypatch.setattr(TinyRun, "_states", before_norm)
    made = TinyRun(tmp_path)
    assert main(made.arguments()) == 2
    assert "before the final norm, or of another model" in capsys.readouterr().err


def test_states_of_other_tokens_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = TinyRun(tmp_path)
    path = tmp_path / "hidden" / "code" / "manifest.json"
    value = read_json(path)
    value["shards"][1]["source_sha256"] = "0" * 64
    write_json(path, value)
    assert main(made.arguments()) == 2
    assert "captured from other shards" in capsys.readouterr().err


def test_a_draft_vocabulary_of_another_size_is_refused(run: TinyRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run.arguments("size", "size_store", draft_vocab_size=100)) == 2
    assert "rebuild the corpus" in capsys.readouterr().err


def test_layers_that_could_not_be_served_are_refused_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuxLayers, "default", classmethod(lambda cls, layers: cls(3, 4, 5, layers)))
    made = TinyRun(tmp_path)
    assert main(made.arguments()) == 2
    assert "SGLang since May 2026 then drops its +1" in capsys.readouterr().err
    assert not list((tmp_path / "store").glob("*/checkpoint-*"))


def test_the_same_weights_export_to_the_same_bytes_whatever_the_store(run: TinyRun) -> None:
    tensors = load_file(run.folder / "whole" / "drafter" / "model.safetensors")
    save_file(tensors, run.folder / "copy.safetensors", metadata={"format": "pt"})
    whole = (run.folder / "whole" / "drafter" / "model.safetensors").read_bytes()
    assert (run.folder / "copy.safetensors").read_bytes() == whole
