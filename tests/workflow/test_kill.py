"""kill -9 of the whole workflow in the middle of each stage: it resumes and ends with the same bytes."""

from __future__ import annotations

import shutil

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


def test_a_run_killed_in_every_stage_ends_with_the_bytes_of_an_undisturbed_one(project):
    project.snakemake()
    undisturbed = project.outputs()
    for name in ("results", "vault", ".snakemake", "store/hidden", "store/train"):
        shutil.rmtree(project.folder / name)
    killed = []
    for log, text, delay in STAGES:
        if project.kill_during(log, after=text, delay=delay):
            killed.append(log)
        project.unlock()
    project.snakemake()
    assert project.outputs() == undisturbed
    assert len(killed) >= 6, f"the run was gone before these could be killed: only {killed} were"
