"""The command line: help that costs nothing, failures as one line, logs that hold what stderr showed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from eyrie.cli import COMMANDS, build_parser, main
from eyrie.errors import ExitCode, InputError


def test_help_lists_every_stage_and_imports_no_torch():
    code = "import sys, eyrie.cli as c; c.build_parser(None).format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    text = build_parser(None).format_help()
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_stage_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) > 8, "a help page with a paragraph and an example"
    assert f"eyrie {command}" in text


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys):
    assert main(["config", "train.lrr=1"]) == ExitCode.USAGE
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("eyrie config: error: ") and "train.lrr" in lines[0]


def test_a_defect_keeps_its_traceback_and_exit_code_1(monkeypatch, capsys):
    def broken(args):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("eyrie.commands.config.run", broken)
    assert main(["config"]) == ExitCode.FAILED
    assert "ZeroDivisionError: oops" in capsys.readouterr().err


def test_the_log_file_holds_what_stderr_showed(tmp_path, monkeypatch, capsys):
    def failing(args):
        print("step 1 of 2", file=sys.stderr)
        assert not sys.stderr.isatty()
        raise InputError("row 7 has no text; remove it")

    monkeypatch.setattr("eyrie.commands.config.run", failing)
    log = tmp_path / "logs" / "config.log"
    assert main(["--log", str(log), "config"]) == ExitCode.USAGE
    assert log.read_text() == capsys.readouterr().err
    assert "step 1 of 2" in log.read_text() and "row 7" in log.read_text()


def test_interruption_is_no_defect(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("eyrie.commands.config.run", interrupted)
    assert main(["config"]) == ExitCode.INTERRUPTED
    assert "run it again" in capsys.readouterr().err


def test_config_prints_names_and_slices(capsys):
    assert main(["config", "--names"]) == 0
    assert "experiment: kimi_k2_5" in capsys.readouterr().out
    assert main(["config", "train.lr=0.5", "--slice", "train"]) == 0
    assert '"lr":0.5' in capsys.readouterr().out
    assert main(["config", "--slice", "generate", "--dataset", "nothing"]) == ExitCode.USAGE
    assert "demo_code" in capsys.readouterr().err
