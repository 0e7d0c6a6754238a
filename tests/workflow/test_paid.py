"""A paid run that is interrupted in every way a user knows: it continues, and nothing is paid for twice."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
import zstandard

from eyrie.vault import Vault
from tests.gateway_double import Double
from tests.workflow.paid import KEY, ROWS, SCRIPT, PaidProject, write_sources


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A folder with prompts and provider list made, nothing bought; and what an undisturbed run generates there."""
    top = tmp_path_factory.mktemp("paid")
    (top / "key.txt").write_text(KEY + "\n")
    with Double(**SCRIPT) as double:
        project = PaidProject(top / "prepared", double, top / "key.txt")
        write_sources(project.folder / "sources")
        code, text = project.run("prompts", "providers")
        assert code == 0, text
        shutil.copytree(project.folder, top / "undisturbed", symlinks=True)
        undisturbed = PaidProject(top / "undisturbed", double, top / "key.txt")
        code, text = undisturbed.run("generate")
        assert code == 0, text
        return project.folder, undisturbed.generated()


@pytest.fixture
def project(prepared: tuple[Path, dict[str, bytes]], tmp_path: Path):
    shutil.copytree(prepared[0], tmp_path / "run", symlinks=True)
    with Double(**SCRIPT) as double:
        yield PaidProject(tmp_path / "run", double, prepared[0].parent / "key.txt")


def finishes(project: PaidProject, expected: dict[str, bytes], *, killed: bool = False) -> None:
    """The next run finishes with an undisturbed run's files, and then nothing is pending.

    Three things may differ: a summary says that it continued partial data, and counts the attempts that were in vain;
    and after a kill an answer that was under way may have been generated again, with a generation id of its own and one
    more bill.
    """
    code, text = project.run("generate")
    assert code == 0, text
    found = project.generated()
    assert {k: plain(k, v, killed) for k, v in found.items()} == {k: plain(k, v, killed) for k, v in expected.items()}
    assert project.pending() == set()


def plain(name: str, data: bytes, killed: bool) -> bytes:
    """A file without what may differ."""
    if name.endswith(".summary.json"):
        facts = {**json.loads(data), "continued": False}
        del facts["waste"]
        data = json.dumps(facts).encode()
        return re.sub(rb'"(billed|wasted)": "[0-9.]+"', b"", data) if killed else data
    return (
        re.sub(rb"(gen-[0-9a-f]{20})-\d+", rb"\1", zstandard.ZstdDecompressor().decompressobj().decompress(data))
        if killed
        else data
    )


def nothing_paid_twice(project: PaidProject, lost: int = 0) -> None:
    """No request was billed twice but for `lost` ones that were under way at a kill; the vault knows every bill."""
    state = project.double.state()
    bills = Counter(entry["digest"] for entry in state["ledger"] if Decimal(entry["cost"]))
    assert sum(n - 1 for n in bills.values()) <= lost
    with Vault(project.folder / "vault") as vault:
        assert vault.check() == []
        books = vault.committed()
    assert books["reserved"] == 0
    assert books["settled"] + books["unknown"] >= Decimal(state["billed"]) * 1_000_000
    if not lost:
        assert books["settled"] - Decimal(state["billed"]) * 1_000_000 < state["bills"]  # rounded up, each


def test_credits_that_run_out_half_way_leave_a_run_that_added_credits_finish(project, prepared) -> None:
    project.double.change(credits=0.008)
    code, text = project.run("generate")
    assert code == 1 and "non-zero exit status 11" in text
    made = {name.removesuffix(".jsonl.zst") for name in project.generated() if name.endswith(".zst")}
    unfinished = set(ROWS) - made
    assert unfinished
    for name in unfinished:
        said = project.log(name)
        assert "eyrie generate: error: " in said and "Add credits" in said and "rows are still open" in said
    assert project.pending() == unfinished
    project.double.change(credits=1.0)
    finishes(project, prepared[1])
    nothing_paid_twice(project)


def test_ctrl_c_once_awaits_what_is_under_way_and_the_next_run_continues(project, prepared) -> None:
    code, text = project.interrupted(12, signal.SIGINT)
    assert code != 0 and "awaited" in text
    stored = project.double.brief()["bills"]
    assert 12 <= stored < 70 and project.double.brief()["in_flight"] == 0
    assert project.pending()
    finishes(project, prepared[1])
    nothing_paid_twice(project)


def test_ctrl_c_twice_aborts_and_the_next_run_continues(project, prepared) -> None:
    project.double.change(clock=3.0)
    code, text = project.interrupted(12, signal.SIGINT, signal.SIGINT)
    assert code != 0
    project.double.change(clock=30.0)
    finishes(project, prepared[1], killed=True)
    nothing_paid_twice(project, lost=8)


def test_kill_nine_of_the_whole_tree_and_the_next_run_continues(project, prepared) -> None:
    code, _ = project.interrupted(12, signal.SIGKILL)
    assert code == -signal.SIGKILL
    code, text = project.run("--unlock")
    assert code == 0, text
    finishes(project, prepared[1], killed=True)
    nothing_paid_twice(project, lost=8)


def test_the_loss_of_everything_but_the_vault_costs_nothing(project, prepared) -> None:
    finishes(project, prepared[1])
    bills = project.double.brief()["bills"]
    shutil.rmtree(project.folder / "results")
    shutil.rmtree(project.folder / ".snakemake")
    finishes(project, prepared[1])
    assert project.double.brief()["bills"] == bills
    nothing_paid_twice(project)


def test_partial_data_is_built_on_when_asked_for_and_completed_by_the_next_run(project, prepared) -> None:
    project.double.change(credits=0.008)
    code, text = project.run("generate", settings=("generate.on_exhausted=build_partial",))
    assert code == 0, text
    partial = {name for name in ROWS if "; partial: " in project.log(name)}
    assert partial and set(project.generated()) == set(prepared[1])
    assert project.pending(settings=("generate.on_exhausted=build_partial",)) == set()  # accepted as it is
    assert project.pending() == partial  # the default goes on buying
    project.double.change(credits=1.0)
    finishes(project, prepared[1])
    assert project.pending(settings=("generate.on_exhausted=build_partial",)) == set()
    nothing_paid_twice(project)
