"""Answers that arrived whole and are still no data: a host's template leaked into the text, or the text is a loop.

Both are defects of serving, not what the target would say. Deterministic, and cautious: a good answer that is refused
costs its price again, so only what is beyond doubt is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GRAM = 24  # characters; long enough that prose, code and tables hardly repeat one by chance
REACHES = (1, 4, 16)  # ends looked at, in windows: short loops fill the first, repeated paragraphs the last
CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`", re.DOTALL)
# Control tokens of chat templates (Kimi's and others' `<|im_end|>`, DeepSeek's with full-width bars), think tags that
# a reasoning parser left behind, and tool calls that nobody parsed. F#'s and Haskell's `<|` have no word and bar.
MARKER = re.compile(r"<\|[A-Za-z]\w{1,60}\|>|<\uff5c[^\uff5c<>\n]{1,60}\uff5c>|</?think>|</?tool_calls?>")


@dataclass(frozen=True)
class Quality:
    """Thresholds. `loop_window` characters (0: loops are no fault), `loop_share` of distinct runs of 24 characters."""

    markers: bool = True
    loop_window: int = 4000
    loop_share: float = 0.1
    missing_reasoning: bool = True  # refuse an answer without reasoning when it was asked for
    tries: int = 2  # attempts that a row gets before a fault of quality gives it up


def flaw(message: Mapping[str, Any], quality: Quality) -> tuple[str, str] | None:
    """(reason, detail) of what is wrong with an assistant message, None when nothing is."""
    for name, text in _texts(message):
        if quality.markers and name != "tool_calls" and (found := leaked_marker(text)):
            return "leaked_marker", f"{found} in {name}"
        if quality.loop_window and (period := loops(text, quality.loop_window, quality.loop_share)):
            return "loop", f"the end of {name} repeats itself, {period} characters of it are distinct"
    return None


def leaked_marker(text: str) -> str | None:
    """The first template marker outside of code: in code it is what the answer is about."""
    if "<" not in text or not (found := MARKER.search(text)):
        return None
    found = MARKER.search(CODE.sub("", text))
    return found.group() if found else None


def loops(text: str, window: int, share: float) -> int:
    """How many distinct runs of 24 characters the looping end of `text` has, 0 when it does not loop.

    A loop goes on until max_tokens, so only ends are looked at: the last 1, 4 and 16 windows, as far as the text
    reaches. A period of p characters leaves p distinct runs; below `share` of the end's length it is a loop, at 0.1
    ten times the same. Measured on good text the lowest share is a multiple of that (tests).
    """
    for reach in REACHES:
        size = window * reach
        if len(text) < size:
            return 0
        end = text[-size:]
        distinct = len({end[i : i + GRAM] for i in range(size - GRAM + 1)})
        if distinct < share * size:
            return distinct
    return 0


def _texts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("reasoning", "reasoning_content", "content"):
        value = message.get(name)
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list):
            yield name, "".join(str(part.get("text") or "") for part in value if isinstance(part, dict))
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    named = [f"{f.get('name')} {f.get('arguments')}" for f in functions if isinstance(f, dict)]
    if named:
        yield "tool_calls", "\n".join(named)
