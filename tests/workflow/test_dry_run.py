"""What a dry run shows, and what a wrong setting or a missing thing says."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.workflow.conftest import ROOT, SNAKEMAKE, Project, clean_environment


def dry(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "-n", *arguments], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environment(),
    )  # fmt: skip


@pytest.fixture
def empty(tmp_path) -> Project:
    return Project(tmp_path, settings=())


def test_the_kimi_run_is_planned_without_network_or_key(tmp_path):
    start = time.monotonic()
    done = dry("--directory", str(tmp_path), "-p", "--resources", "gpu=8", "--config", "experiment=kimi_k2_5")
    assert done.returncode == 0, done.stdout
    for name in ("B1_glaive", "B2_opencodeinstruct", "B3_magicoder", "B4_mixture_of_thoughts", "B5_openthoughts",
                 "B6_ultrachat", "B7_sharegpt", "B8_sweagent"):  # fmt: skip
        assert f"results/kimi_k2_5/generated/{name}.jsonl.zst" in done.stdout
        assert f"results/kimi_k2_5/hidden/{name}/00000.safetensors" in done.stdout
    assert "gpu=8" in done.stdout and "--gpus 8" in done.stdout
    assert time.monotonic() - start < 60  # a hang on a missing network would take longer; 10 s is the goal


def test_settings_come_from_a_configfile_as_well(tmp_path):
    (tmp_path / "mine.yaml").write_text("experiment: kimi_k2_5\nrun: mine\ntrain: {lr: 1.0e-5}\nset: [train.steps=3]\n")
    done = dry("--directory", str(tmp_path), "--configfile", str(tmp_path / "mine.yaml"), "-p", "train")
    assert done.returncode == 0, done.stdout
    assert '"lr":1e-05' in done.stdout and '"steps":3' in done.stdout and "results/mine/" in done.stdout


@pytest.mark.parametrize(
    ("setting", "words"),
    [("set=[train.lrr=1]", "did you mean lr?"), ("set=[train.lr=abc]", "train.lr"), ("target=nothing", "smollm2_135m")],
)
def test_a_wrong_setting_stops_before_any_job(tmp_path, setting, words):
    done = dry("--directory", str(tmp_path), "--config", setting)
    assert done.returncode != 0
    assert words in done.stdout
    assert "Traceback" not in done.stdout
    assert "Job stats" not in done.stdout


@pytest.mark.parametrize("stage", ["target", "providers", "prompts", "generate", "tokenize", "corpus", "capture",
                                   "train", "evaluate", "report"])  # fmt: skip
def test_every_stage_is_a_target_of_its_own(empty, stage):
    assert any(name.startswith(stage) for name in empty.pending(stage))


def test_one_datasets_file_needs_only_its_own_jobs(empty):
    pending = empty.pending("results/laptop/generated/demo_code.jsonl.zst")
    assert pending == {"target", "providers", "prompts_dataset", "generate_dataset"}


def test_a_server_that_runs_already_needs_its_address_and_no_target_files_to_generate(tmp_path):
    url = "gateway.base_url=http://127.0.0.1:30000/v1"
    given = dry("--directory", str(tmp_path), "-p", "generate", "--config", f"set=[gateway=openai,{url}]")
    assert given.returncode == 0, given.stdout
    assert "127.0.0.1:30000" in given.stdout and "rule target:" not in given.stdout
    missing = dry("--directory", str(tmp_path), "generate", "--config", "gateway=openai")
    assert missing.returncode != 0 and url in missing.stdout and "Traceback" not in missing.stdout


def test_a_server_that_each_job_starts_gets_the_target_its_gpus_and_a_log(tmp_path):
    done = dry("--directory", str(tmp_path), "-p", "generate", "--resources", "gpu=2", "--config", "gateway=sglang",
               "set=[gateway.launch.args={tp-size:2},resources.generate.gpu=2]")  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "rule target:" in done.stdout and "gpu=2" in done.stdout and '"tp-size":2' in done.stdout
    assert "--server-log results/laptop/logs/generate/demo_code.server.log" in done.stdout


def test_what_the_kimi_run_lacks_is_said_by_the_job_that_needs_it(tmp_path):
    closed = ("experiment=kimi_k2_5", "gateway.base_url=http://127.0.0.1:9/api/v1")
    project = Project(tmp_path, settings=())
    text = subprocess.run(
        [*project.command("results/kimi_k2_5/providers.json")[:-1], closed[0], f"set=[{closed[1]}]"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environment(),
    ).stdout  # fmt: skip
    assert "eyrie providers: error:" in text and "127.0.0.1:9" in text
    assert "Traceback" not in text
