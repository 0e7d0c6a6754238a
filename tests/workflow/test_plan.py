"""The head of a dry run, and `tokens_per_dataset: fit` through real Snakemake runs against the double."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tests.gateway_double import Double
from tests.workflow.conftest import Project

ROWS = "generated/demo_code.jsonl.zst"
KEY = "sk-" + "or-v1-" + "canary0123456789abcdef0123456789"


@pytest.fixture
def double():
    with Double(tokens=[20, 60]) as running:
        yield running


@pytest.fixture
def paid(tmp_path: Path, double: Double) -> Project:
    """A small dataset, to be bought from the double for less than a cent."""
    (tmp_path / "key.txt").write_text(KEY)
    return Project(
        tmp_path,
        ("gateway=openrouter", f"gateway.base_url={double.url}", "gateway.policy.quantizations=[int4,fp8]",
         f"gateway.api_key_file={tmp_path / 'key.txt'}", "target.openrouter_model=maker/target",
         "dataset=[demo_code]", "generate.max_tokens=64", "generate.budget_usd=0.004",
         "generate.tokens_per_dataset=fit", "plan.answer_tokens=32",
         "datasets.demo_code.max_prompt_chars=1000", "run=paid"),
    )  # fmt: skip


def bytes_of(project: Project) -> dict[str, bytes]:
    folder = project.folder / "results" / "paid"
    return {name: (folder / name).read_bytes() for name in ("fit.json", ROWS)}


def test_a_dry_run_of_a_paid_run_begins_with_its_plan(tmp_path: Path) -> None:
    project = Project(tmp_path, ())
    command = [*project.command("-n")[:-1], "experiment=kimi_k2_5", "set=[generate.tokens_per_dataset=10_000_000]"]
    text = project.call(command)
    head = text[: text.index("Job stats")]
    assert "plan of kimi_k2_5" in head and "$176.00 expected before prompts, it does NOT fit" in head
    assert "largest equal token budget that fits (8 datasets): 5,681,818" in head
    assert not (tmp_path / "vault").exists()


@pytest.mark.parametrize("settings", [(), ("gateway=openrouter", "target.openrouter_model=a/b")])
def test_a_free_run_has_no_plan(tmp_path: Path, settings: tuple[str, ...]) -> None:
    assert "plan of" not in Project(tmp_path, settings).snakemake("-n", "generate")


def test_a_chosen_budget_stays_whatever_moves_until_it_is_chosen_anew(paid: Project, double: Double) -> None:
    text = paid.snakemake("generate")
    assert "plan of paid" in text and "tokens_per_dataset=fit: " in text  # said by the job that chose
    first, billed = bytes_of(paid), double.billed
    assert 0 < billed <= Decimal("0.004")
    more = ("generate.budget_usd=0.006",)
    assert paid.pending("generate", settings=more) == set()  # money is in no slice

    double.change(prompt_price="0.0000006", completion_price="0.0000023")
    for path in sorted((paid.folder / "results").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    paid.snakemake("generate")
    assert bytes_of(paid) == first and double.billed == billed

    paid.eyrie("plan", "--refit", *paid.settings, *more)
    assert bytes_of(paid)["fit.json"] != first["fit.json"]
    assert paid.pending("generate", settings=more) == {"generate", "generate_dataset"}
    paid.snakemake("generate", settings=more)
    assert billed < double.billed <= Decimal("0.006") and bytes_of(paid)[ROWS] != first[ROWS]
