"""The law of reruns, on the real workflow with the real small model: what is rebuilt, and that bytes never change,
whatever is lost and whenever it is killed."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

AFTER_TOKENS = {"corpus", "train", "evaluate", "report"}

STAGES = [  # log file, text that shows the stage at work, seconds of work before the kill
    ("prompts/demo_code.log", "", 0.2),
    ("generate/demo_code.log", "", 6.0),
    ("tokenize/demo_oss.log", "", 1.0),
    ("corpus.log", "", 0.5),
    ("capture/demo_code.log", "", 4.0),
    ("train.log", "step", 0.5),
    ("evaluate.log", "", 4.0),
    ("report.log", "", 0.5),
]


@pytest.fixture(scope="module")
def finished(project):
    """A finished run and the hashes of its files."""
    project.snakemake()
    return project.outputs()


def attempts(project) -> int:
    """Requests that ever went out, by the vault's journal."""
    with sqlite3.connect(project.folder / "vault" / "vault.sqlite") as connection:
        return connection.execute("SELECT count(*) FROM journal").fetchone()[0]


def inodes(project) -> dict:
    """Inode of every stored file: writing one again gives another (linking one back may touch its time)."""
    return {path: path.stat().st_ino for path in (project.folder / "store").rglob("*.safetensors")}


def test_nothing_is_pending_after_a_finished_run(project, finished):
    assert project.pending() == set()
    assert "Nothing to be done" in project.snakemake()


def test_touching_every_file_reruns_nothing(project, finished):
    for path in (project.folder / "results" / "tiny").rglob("*"):
        if path.is_file():
            path.touch()
    assert project.pending() == set()


def test_deleting_one_datasets_answers_rebuilds_only_what_depends_on_them_and_buys_nothing(project, finished):
    before = attempts(project)
    (project.folder / "results/tiny/generated/demo_code.jsonl.zst").unlink()
    expected = {"generate_dataset", "tokenize_demo_code", "capture_demo_code", *AFTER_TOKENS}
    pending = project.pending("results/tiny/tokens/demo_code/manifest.json", "results/tiny/report.html")
    assert pending <= expected and "tokenize_demo_oss" not in pending
    project.snakemake("results/tiny/generated/demo_code.jsonl.zst")
    assert attempts(project) == before
    assert project.outputs() == finished
    assert project.pending() == set()


def test_deleting_one_hidden_shard_links_it_back_from_the_store(project, finished):
    (project.folder / "results/tiny/hidden/demo_oss/00000.safetensors").unlink()
    assert "capture_demo_oss" in project.pending("capture")
    assert "capture_demo_code" not in project.pending("capture")
    project.snakemake("capture")
    assert project.outputs() == finished


def test_another_learning_rate_reruns_training_and_what_follows(project, finished):
    assert project.pending(settings=("train.lr=5e-4",)) == {"train", "evaluate", "report"}


def test_money_and_concurrency_rerun_nothing(project, finished):
    changes = ("generate.in_flight=3", "generate.budget_usd=5", "generate.max_attempts=2", "gateway.width=8")
    assert project.pending(settings=changes) == set()


def test_another_draft_vocabulary_needs_no_new_capture(project, finished):
    assert project.pending(settings=("drafter.draft_vocab_size=900",)) == AFTER_TOKENS


def test_losing_all_results_costs_no_request_no_capture_and_no_training(project, finished):
    before = attempts(project)
    stored = inodes(project)
    shutil.rmtree(project.folder / "results")
    shutil.rmtree(project.folder / ".snakemake")
    project.snakemake()
    assert project.outputs() == finished
    assert attempts(project) == before
    assert inodes(project) == stored


def test_a_run_killed_in_every_stage_ends_with_the_bytes_of_an_undisturbed_one(project, finished):
    for name in ("results", "vault", ".snakemake", "store/hidden", "store/train"):
        shutil.rmtree(project.folder / name)
    killed = []
    for log, text, delay in STAGES:
        if project.kill_during(log, after=text, delay=delay):
            killed.append(log)
        project.unlock()
    project.snakemake()
    assert project.outputs() == finished
    assert len(killed) >= 6, f"the run was gone before these could be killed: only {killed} were"
