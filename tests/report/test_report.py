"""The page and the card: true to the files, self-contained, the same bytes each time, deaf to what texts contain."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from eyrie.cli import main
from eyrie.files import read_json, write_json
from tests.report.finished_run import build

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> | `$x$` **b** [a](http://evil.example) & {{ 7*7 }}"


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    VOID = {"meta", "img", "br", "path", "use", "link", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert main(build(folder)) == 0
    return folder


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    assert main(build(folder, hostile=HOSTILE, benchmark=HOSTILE)) == 0
    return folder


def test_page_shows_the_figures_of_the_run(made: Path) -> None:
    page = Page((made / "report.html").read_text())
    assert not page.open, "unclosed tags"
    for figure in ("1.634", "1.712", "1.784", "1.635", "1.664", "4\u202f321", "95.5", "2.47", "int4", "62.5"):
        assert figure in page.text, figure
    for word in ("lossless", "demo_code", "quantization undeclared", "refusal", "too long", "0123456789abcdef"):
        assert word in page.text, word
    assert page.tags.count("svg") == 5
    for axis in ("optimizer step", "generated tokens in a row", "draft 3"):
        assert axis in page.text, "text of the figures stays text"


def test_page_needs_no_network_and_no_script(made: Path, attacked: Path) -> None:
    for folder in (made, attacked):
        page = Page((folder / "report.html").read_text())
        assert not {"script", "link", "iframe", "object", "img", "base"} & set(page.tags)
        for name, value in page.attributes:
            assert not name.startswith("on"), name
            if name in ("href", "src"):
                assert value and value.startswith("#")
            if name not in ("aria-label",):
                assert "//" not in (value or "") or value.isascii() is False, (name, value)
    raw = (made / "report.html").read_text()
    assert not re.search(r"https?:|url\((?!#)|@import", raw)


def test_hostile_texts_stay_texts(attacked: Path) -> None:
    raw = (attacked / "report.html").read_text()
    page = Page(raw)
    assert "<script" not in raw and "<img" not in raw
    assert "<script>alert(1)</script>" in page.text, "shown as it is"
    assert "{{ 7*7 }}" in page.text and not page.open
    card = (attacked / "drafter" / "README.md").read_text()
    body = card.split("```")[0] + card.split("```")[-1]
    assert "<script" not in body and "<img" not in body
    assert "[a](" not in body.replace("\\[a\\]\\(", "") and "**b**" not in body
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    for header in ("| set |", "| dataset |"):
        start = next(i for i, line in enumerate(rows) if line.startswith(header))
        assert rows[start + 1].count("|") == rows[start].count("|"), rows[start + 1]


def test_same_inputs_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    before = [(made / name).read_bytes() for name in ("report.html", "drafter/README.md")]
    assert main(build(made)) == 0
    assert [(made / name).read_bytes() for name in ("report.html", "drafter/README.md")] == before


def test_card_says_how_to_serve_and_what_was_not_run(made: Path) -> None:
    card = (made / "drafter" / "README.md").read_text()
    assert "python -m sglang.launch_server --model-path" in card and "--speculative-num-draft-tokens 4" in card
    assert '"method": "eagle3"' in card and '"num_speculative_tokens": 3' in card
    assert "Serving on a GPU engine was not run here." in card
    assert "| holdout | 1.634 | 1.635 |" in card and "41 / 16 / 6" in card
    assert "2, 3, 4" in card and "ab" * 32 in card


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("evaluation.json", {"format": "eyrie-evaluation-0"}, "not an evaluation"),
        ("evaluation.json", {"target": "feedfeedfeedfeed"}, "another target"),
        ("generated/demo_oss.summary.json", {"dataset": "other"}, "demo_oss"),
    ],
)
def test_files_that_do_not_belong_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: dict, message: str
) -> None:
    arguments = build(tmp_path)
    write_json(tmp_path / name, read_json(tmp_path / name) | change)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
