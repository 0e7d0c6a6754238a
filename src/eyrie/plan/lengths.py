"""How long prompts and answers are: measured where the vault holds some, sampled from the prompts, else assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from eyrie.files import canonical_json, read_jsonl_zst
from eyrie.plan.history import History

SAMPLE = 256  # rows; they stand in an order of hashes, so the first ones are a random sample
ENOUGH = 16  # answers in the vault before their lengths are trusted
CHARACTERS = 4  # of one token
MARKS = 8  # tokens that a chat template puts around a message


@dataclass(frozen=True)
class Lengths:
    """Means over the requests of one dataset. `basis`: where they come from, for people."""

    prompt: int  # tokens of one request's prompt, the earlier turns included
    completion: int  # output tokens of one answer
    answers: float  # of one conversation
    basis: str


def lengths(dataset: Mapping[str, Any], answer_tokens: int, prompts: Path | None, history: History) -> Lengths:
    """What to expect of a dataset (schema.Dataset). `answer_tokens`: of one answer, until the vault holds some.

    Tokens of prompts are characters / 4 until measured.
    """
    measured = history.answers >= ENOUGH
    completion = max(1, round(history.tokens / history.answers)) if measured else answer_tokens
    if prompts is not None:
        sample = [_shape(row, dataset["turns"], completion) for row in islice(read_jsonl_zst(prompts), SAMPLE)]
        requests = [tokens for shape in sample for tokens in shape]
        mean, answers = sum(requests) / max(len(requests), 1), len(requests) / max(len(sample), 1)
        source = f"its first {len(sample)} prompts"
    else:
        half = dataset["max_prompt_chars"] / 2 / CHARACTERS
        turns = dataset["turns"]
        # Turns share the limit; the answers before a turn come on top.
        mean, answers = half * (turns + 1) / 2 / turns + completion * (turns - 1) / 2, float(turns)
        source = "half of max_prompt_chars"
    if measured:
        mean = history.prompt_tokens / history.answers
        return Lengths(max(1, round(mean)), completion, answers, "the means of the answers in the vault")
    return Lengths(max(1, round(mean)), completion, answers, f"{source}; answers of {completion:,} tokens assumed")


def _shape(row: Mapping[str, Any], turns: int, completion: int) -> list[int]:
    """Prompt tokens of each request of a conversation, if the target calls every tool that the source recorded."""
    declared = len(canonical_json(row["tools"])) / CHARACTERS if row.get("tools") else 0
    tokens = declared + sum(_size(message) for message in row["messages"])
    found, users, waiting = [tokens], 1, False
    for message in row.get("turns") or ():
        if message["role"] == "user":
            if users == turns:
                break
            users += 1
        if message["role"] == "user" or not waiting:  # results of one answer's calls come together
            tokens += completion + MARKS
            found.append(tokens)
        waiting = message["role"] == "tool"
        tokens += _size(message)
        found[-1] += _size(message)
    return [round(tokens) for tokens in found]


def _size(message: Mapping[str, Any]) -> float:
    content = message.get("content")
    return (len(content) if isinstance(content, str) else len(canonical_json(content))) / CHARACTERS + MARKS


def row_ids(lines: Iterator[bytes]) -> Iterator[str]:
    """The ids of a prompts file's lines, without reading what follows them (it may be 100 kB a line)."""
    import json

    for line in lines:
        end = line.find(b',"index":')
        fast = line.startswith(b'{"id":') and end > 0
        yield json.loads(line[6:end]) if fast else json.loads(line)["id"]
