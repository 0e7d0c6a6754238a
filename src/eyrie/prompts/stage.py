"""From raw rows to ordered prompts: the pure part of `eyrie prompts`."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eyrie.errors import InputError
from eyrie.files import canonical_json, fingerprint
from eyrie.prompts.decontaminate import Benchmarks
from eyrie.prompts.order import Selection, place
from eyrie.prompts.rows import Adapter, BadRow, Drop, Message, PromptRow
from eyrie.prompts.sources import Raw

BAD_ROW = "bad row"  # the reason whose cases the summary lists
EXAMPLES = 20  # that many of them


def normalise(text: str) -> str:
    """Newlines as LF, Unicode in NFC, no white space at the ends."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def clean(row: PromptRow, *, turns: int, max_chars: int) -> PromptRow | Drop:
    """`row` normalised and cut to `turns` user turns, or why it is no prompt.

    The conversation is also cut where it would pass `max_chars` characters of prompt (tool declarations count).
    """
    messages = [{**message, "content": normalise(message["content"])} for message in row.messages]
    messages = [message for message in messages if message["content"] or message["role"] == "user"]
    if not messages[-1]["content"]:
        return Drop("empty")
    size = sum(len(message["content"]) for message in messages)
    size += len(canonical_json(row.tools)) if row.tools else 0
    if size > max_chars:
        return Drop("too long", f"{size} characters")
    later: list[Message] = []
    for message in row.turns if turns > 1 else ():
        turns -= message["role"] == "user"
        content = normalise(message["content"])
        size += len(content)
        if turns < 1 or size > max_chars or not content:
            break
        later.append({**message, "content": content})
    text = "".join(message["content"] for message in [*messages, *later])
    try:
        text.encode()
    except UnicodeEncodeError:
        return Drop("no unicode", "a lone surrogate")
    return PromptRow(row.id, messages, row.tools, later)


@dataclass
class Result:
    """Prompts in order, and what became of every other row: `read = kept + beyond + sum(dropped)`."""

    prompts: list[dict[str, Any]] = field(default_factory=list)
    read: int = 0
    beyond: int = 0  # past `rows` in the order
    dropped: Counter[str] = field(default_factory=Counter)
    bad_rows: list[str] = field(default_factory=list)
    contaminated: list[dict[str, str]] = field(default_factory=list)


def select(
    source: Iterable[Raw],
    adapter: Adapter,
    settings: Mapping[str, Any],
    *,
    seed: int,
    benchmarks: Benchmarks,
    progress: Callable[[int], None] = lambda read: None,
) -> Result:
    """The first `settings["rows"]` prompts of `source` in the seeded order.

    `settings` are the dataset's (schema.Dataset). Rows that are no conversation are counted wherever they stand; what
    else is left out (too long, duplicate, contaminated) where the taken part of the order would have held it, so no
    count depends on the order of reading. Raises InputError when the
    first row lacks the adapter's columns or no row can be used.
    """
    result = Result()
    selection = Selection(settings["rows"], seed)
    left_out: list[tuple[int, str, dict[str, str]]] = []  # (place, reason, what to tell of it)
    for raw in source:
        if result.read == 0:
            _check_columns(raw, adapter, settings["adapter"])
        result.read += 1
        progress(result.read)
        adapted = _adapt(raw, adapter)
        if isinstance(adapted, Drop):
            result.dropped[adapted.reason] += 1
            if adapted.reason == BAD_ROW and len(result.bad_rows) < EXAMPLES:
                result.bad_rows.append(f"{_short(raw)}: {adapted.detail}")
            continue
        if not selection.wants(adapted.id):
            continue
        row = clean(adapted, turns=settings["turns"], max_chars=settings["max_prompt_chars"])
        where = place(seed, adapted.id, "")[0]
        if isinstance(row, Drop):
            left_out.append((where, row.reason, {}))
        elif hit := benchmarks.hit(_user_text(row)):
            told = {"id": row.id, "benchmark_prompt": hit[0], "shared_words": hit[1]}
            left_out.append((where, "contaminated", told))
        else:
            digest = fingerprint(row.messages, row.tools, row.turns, length=32)
            selection.offer(row.id, digest, (row, raw.file, raw.row))
    for where, reason, told in sorted(left_out, key=lambda entry: entry[0]):
        if selection.decided(where):
            result.dropped[reason] += 1
            result.contaminated += [told] if told else []
    if duplicates := selection.duplicates():
        result.dropped["duplicate"] = duplicates
    result.prompts = [_line(index, *kept, settings) for index, kept in enumerate(selection.rows())]
    result.beyond = result.read - len(result.prompts) - result.dropped.total()
    if not result.prompts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(result.dropped.items()))
        first = f"; first: {result.bad_rows[0]}" if result.bad_rows else ""
        raise InputError(f"dataset {settings['name']}: no row of {result.read} can be a prompt ({reasons}){first}")
    return result


def _check_columns(raw: Raw, adapter: Adapter, name: str) -> None:
    if not isinstance(raw.value, Mapping):
        raise InputError(f"{raw.where} is {type(raw.value).__name__}, not an object with columns")
    if lacking := adapter.missing(raw.value):
        present = ", ".join(map(str, raw.value)) or "none"
        raise InputError(
            f"{raw.where} lacks the columns of adapter {name}: {lacking} (it has {present}); "
            "set dataset.adapter to the one that fits"
        )


def _adapt(raw: Raw, adapter: Adapter) -> PromptRow | Drop:
    if not isinstance(raw.value, Mapping):
        return Drop(BAD_ROW, f"{type(raw.value).__name__}, not an object")
    try:
        return adapter.adapt(raw.value)
    except BadRow as error:
        return Drop(BAD_ROW, str(error))


def _user_text(row: PromptRow) -> str:
    return "\n".join(m["content"] for m in [*row.messages, *row.turns] if m["role"] == "user")


def _short(raw: Raw) -> str:
    """`Raw.where` without folders, so that the summary's bytes do not depend on where the data lies."""
    return Raw(None, raw.file.rsplit("/", 1)[-1] if not raw.file.startswith("hub:") else raw.file, raw.row).where


def _line(index: int, row: PromptRow, file: str, number: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {"id": row.id, "index": index, "messages": row.messages}
    if row.tools:
        line["tools"] = row.tools
    if row.turns:
        line["turns"] = row.turns
    line["source"] = {
        "adapter": settings["adapter"],
        "source": settings["source"],
        "row": number,
        "licence": settings["licence"],
        "revision": settings["revision"],
    }
    if settings["source"].startswith("files:"):
        line["source"]["file"] = file.rsplit("/", 1)[-1]
    return line
