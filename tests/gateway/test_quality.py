"""What is refused as a defect of serving, and the good text that must never be."""

from __future__ import annotations

import json
import random
import sysconfig
import time
from pathlib import Path

import pytest

from eyrie.gateway.quality import Quality, flaw, leaked_marker, loops

DEFAULT = Quality()
PARAGRAPH = "The harbour lights went out one by one while the last ferry turned towards the open sea. "
CHINESE = "\u6211\u4eec\u7ee7\u7eed\u5206\u6790\u8fd9\u4e2a\u95ee\u9898\uff0c"


def judged(content: str) -> str | None:
    found = flaw({"role": "assistant", "content": content}, DEFAULT)
    return found[0] if found else None


@pytest.mark.parametrize(
    "text",
    ["!" * 5000, "and again " * 500, "Wait, let me check that once more.\n" * 300, CHINESE * 500, "0, " * 2000,
     PARAGRAPH * 60, "".join(PARAGRAPH.replace("one", word) for word in "one two six ten".split()) * 60,
     "A good beginning that goes on for a while. " + "x = x + 1\n" * 500],
    ids=["one character", "two words", "a line", "no spaces", "numbers", "a sentence", "a paragraph", "code"],
)  # fmt: skip
def test_a_loop_is_found_whatever_its_period(text: str) -> None:
    assert judged(text) == "loop"


def test_a_loop_of_long_paragraphs_with_a_counter_is_found() -> None:
    text = "".join(f"Attempt {number}. " + PARAGRAPH * 1 + "".join(random.Random(1).choices("abcdefgh ", k=700))
                   for number in range(40))  # fmt: skip
    assert judged(text) == "loop"


def table(rows: int) -> str:
    head = "| id | name | price | in stock |\n|----|------|-------|----------|\n"
    return head + "".join(f"| {i} | Item {i} | {i * 7 % 90}.50 | yes |\n" for i in range(rows))


GOOD = {
    "a table": table(300),
    "a wide table": "".join(f"| {i:<6} | {'yes' if i % 3 else 'no':<40} | {i * i:<30} |\n" for i in range(200)),
    "a numbered list": "".join(f"{i}. Check that request {i} was answered.\n" for i in range(200)),
    "JSON records": json.dumps([{"id": i, "name": f"user{i}", "active": True, "roles": []} for i in range(200)]),
    "SQL inserts": "".join(f"INSERT INTO t (id, name) VALUES ({i}, 'n{i}');\n" for i in range(200)),
    "unit tests": "".join(f"def test_f_{i}():\n    assert f({i}) == {i * i}\n\n" for i in range(200)),
    "a multiplication table": "\n".join(" ".join(f"{i * j:4}" for j in range(1, 21)) for i in range(1, 60)),
    "CSS": "".join(f".m-{i} {{ margin: {i}px; }}\n.p-{i} {{ padding: {i}px; }}\n" for i in range(120)),
    "a matrix of ones and zeros": "\n".join(" ".join(random.Random(i).choices("01", k=40)) for i in range(80)),
    "hex": "\n".join(" ".join(f"{(i * 37 + j * 11) % 256:02x}" for j in range(16)) for i in range(120)),
    "rulers between sections": "".join(f"{'=' * 60}\nSection {i}: {PARAGRAPH[i % 40 :]}\n" for i in range(60)),
    "a short answer that repeats": "ha " * 500,
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_good_text_is_never_taken_for_a_loop(text: str) -> None:
    assert judged(text) is None


def test_no_window_of_the_standard_librarys_code_is_taken_for_a_loop() -> None:
    root, seen = Path(sysconfig.get_paths()["stdlib"]), 0
    for folder in ("", "asyncio", "json", "email", "test"):
        for path in sorted((root / folder).glob("*.py"))[::4]:
            text = path.read_text(encoding="utf-8", errors="replace")
            for end in range(len(text), 4000, -30_000):
                seen += 1
                assert not loops(text[:end], DEFAULT.loop_window, DEFAULT.loop_share), (path, end)
                assert leaked_marker(text[:end]) is None, path
    assert seen > 100


@pytest.mark.parametrize(
    "text",
    ["Sure.<|im_end|>", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", "thinking</think>answer",
     "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<tool_call>{}</tool_call>", "`a` and <|im_user|> and `b`",
     "```py\nx\n```\n<|endoftext|>"],
)  # fmt: skip
def test_a_marker_of_a_template_is_found(text: str) -> None:
    assert judged(text) == "leaked_marker"


@pytest.mark.parametrize(
    "text",
    ["In ChatML a turn ends with `<|im_end|>`.", "```\n<|im_start|>user\n```", "printfn <| f x |> g", "p <|> q",
     "if a <b| then |c> d", "~~~\n<think>\n~~~", "```\nunclosed <|im_end|>", "x <| y |> z", "<|>", "<thinking>"],
)  # fmt: skip
def test_code_that_speaks_of_markers_or_looks_like_one_is_good(text: str) -> None:
    assert judged(text) is None


def test_reasoning_and_tool_calls_are_looked_at_too_and_switches_turn_it_off() -> None:
    loop = "and again " * 500
    assert flaw({"content": "x", "reasoning": loop}, DEFAULT)[0] == "loop"  # type: ignore[index]
    calls = [{"function": {"name": "f", "arguments": "{}"}}] * 900
    assert flaw({"content": None, "tool_calls": calls}, DEFAULT)[0] == "loop"  # type: ignore[index]
    written = [{"function": {"name": "write", "arguments": '{"text": "<|im_end|>"}'}}]
    assert flaw({"content": None, "tool_calls": written}, DEFAULT) is None
    assert flaw({"content": loop + "<|im_end|>"}, Quality(markers=False, loop_window=0)) is None


def test_a_huge_answer_is_judged_by_its_end_in_little_time() -> None:
    text = "".join(f"{number:07d} " for number in range(640_000))
    began = time.process_time()
    assert judged(text) is None and judged(text + "again " * 1000) == "loop"
    assert time.process_time() - began < 2.0  # 5 MB; the event loop waits for it
