"""`eyrie summary` prints what evaluation.json says."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from eyrie.cli import main
from eyrie.files import write_json
from eyrie.report.summary import show
from tests.report.finished_run import evaluation


def test_table_has_a_row_per_set_and_says_lossless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "evaluation.json", evaluation() | {"sets": evaluation("aime")["sets"] | evaluation()["sets"]})
    assert main(["summary", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[1]: line for line in out.splitlines() if line.count("1.") > 2}
    assert list(rows) == ["holdout", "aime", "humaneval"]
    assert [cell for cell in rows["holdout"].split() if cell[0].isdigit()] == ["1.784", "1.635", "1.634", "24", "2100"]
    assert [cell for cell in rows["humaneval"].split() if cell[0].isdigit()] == [
        "1.862",
        "1.713",
        "1.712",
        "20",
        "1900",
    ]
    assert "lossless: yes (4321 tokens compared)" in out
    assert f"{tmp_path}/drafter" in out and f"{tmp_path}/report.html" in out
    assert "\x1b" not in out, "no colours where there is no terminal"


def test_a_terminal_gets_a_table_and_a_missing_figure_a_dash() -> None:
    value = evaluation()
    value["sets"]["humaneval"]["decode"] = {}
    out = io.StringIO()
    show(value, Path("results/[bold]x"), Console(file=out, force_terminal=True, width=100))
    assert "\x1b[1m" in out.getvalue() and "-" in out.getvalue()
    assert "results/[bold]x/drafter" in out.getvalue()


def test_a_run_that_is_not_there_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(tmp_path / "none")]) == 2
    assert "no such run" in capsys.readouterr().err
    assert main(["summary", str(tmp_path)]) == 2
    assert "snakemake" in capsys.readouterr().err
