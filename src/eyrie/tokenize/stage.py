"""One pass over a dataset's generated conversations, a shard at a time, texts encoded in parallel batches."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eyrie.chat import BatchEncoder, close_answer, special_token_ids
from eyrie.errors import InputError
from eyrie.files import read_jsonl_zst
from eyrie.shards.slots import trained_count
from eyrie.shards.tokens import ShardEntry, TokenRow, write_manifest, write_shard
from eyrie.tokenize.conversation import Answer, Dropped, Reader
from eyrie.tokenize.rows import Turn, cut, join_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 256  # conversations whose texts are encoded together
NAMED = 10  # dropped rows that the log names, per reason


class Tokenizing:
    """Rows of one dataset; counts what it drops and what it keeps but finds odd."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, cfg: Mapping[str, Any], vocab_size: int, source: str):
        self.reader = Reader(tokenizer, vocab_size, cfg["target"]["thinking"])
        self.encoder = BatchEncoder(tokenizer)
        self.max_length = int(cfg["tokenize"]["max_length"])
        self.source = source
        self.dropped: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()

    def rows(self, batch: list[Mapping[str, Any]]) -> Iterator[TokenRow]:
        """Token rows of some generated rows, in their order."""
        kept: list[tuple[Mapping[str, Any], list[Answer]]] = []
        for row in batch:
            self.counted["conversations"] += 1
            try:
                kept.append((row, self.reader.answers(row, self._where(row))))
            except Dropped as reason:
                self._drop(row, reason.reason, str(reason))
            except (KeyError, TypeError) as error:
                raise InputError(
                    f"{self._where(row)}: not a generated row ({type(error).__name__}: {error}); rerun generate"
                ) from None
        answers = [answer for _, found in kept for answer in found]
        encoded = self.encoder.encode([text for answer in answers for text in (answer.prompt_text, answer.text)])
        rendered, spoken = encoded[::2], encoded[1::2]
        same = (text == answer.text for text, answer in zip(self.encoder.decode(spoken), answers, strict=True))
        parts = iter(zip(rendered, spoken, same, strict=True))
        for row, found in kept:
            turns = [self._turn(row, answer, *next(parts)) for answer in found]
            yield from self._finish(row, [turn for turn in turns if turn is not None])

    def _turn(
        self, row: Mapping[str, Any], answer: Answer, rendered: list[int], spoken: list[int], same: bool
    ) -> Turn | None:
        """One turn from the server's ids, else from the encoded texts; `same`: the answer's text survived encoding."""
        prompt, generated = rendered, answer.generated_ids
        if answer.prompt_ids is not None:
            prompt = answer.prompt_ids
            self.counted["rerendered_differs"] += prompt != rendered
        if generated is None:
            if not same:
                self._drop(row, "text_not_reproduced", f"turn {answer.turn} does not survive encoding and decoding")
                return None
            generated = close_answer(self.reader.tokenizer, spoken, answer.finish_reason)
        if not generated:
            self._drop(row, "empty_answer", f"turn {answer.turn} has no token")
            return None
        self.counted["server_token_ids"] += answer.generated_ids is not None
        self.counted["no_end_token"] += answer.finish_reason != "length" and generated[-1] not in self.reader.ends
        self.counted["cut_by_length"] += answer.finish_reason == "length"
        return Turn(answer.turn, prompt, generated)

    def _finish(self, row: Mapping[str, Any], turns: list[Turn]) -> Iterator[TokenRow]:
        drafts = join_turns(turns)
        self.counted["history_rewritten"] += len(drafts) > 1
        for draft in drafts:
            short, how = cut(draft, self.max_length)
            if short is None:
                self._drop(row, "prompt_over_max_length", f"turn {draft.turn} needs {draft.spans[0][0]} prompt tokens")
                continue
            if how is not None:
                self.counted[how] += 1
            if trained_count(short.spans) == 0:
                self._drop(row, "no_trained_slot", f"turn {draft.turn} has no token that a draft could guess")
                continue
            ids = np.array(short.ids, dtype=np.int32)
            yield TokenRow(row["id"], row["index"], short.turn, ids, short.spans)

    def _where(self, row: Mapping[str, Any]) -> str:
        return f"{self.source}: row {row.get('id')}"

    def _drop(self, row: Mapping[str, Any], reason: str, detail: str) -> None:
        self.dropped[reason] += 1
        if self.dropped[reason] <= NAMED:
            print(f"tokenize: {self._where(row)} dropped: {reason} ({detail})", file=sys.stderr)


def by_shard(rows: Iterable[Mapping[str, Any]], size: int, total: int, source: str) -> Iterator[list[Any]]:
    """The rows of shard 0, 1, … as lists; shard k holds the indices [k·size, (k + 1)·size), empty ones included.

    Raises InputError when an index is out of order or not below `total`, the prompts of the dataset.
    """
    shard, current, last = 0, [], 0
    for row in rows:
        index = row.get("index") if isinstance(row, dict) else None
        if not isinstance(index, int) or not last <= index < total:
            name = row.get("id") if isinstance(row, dict) else repr(row)
            raise InputError(f"{source}: row {name}: index {index} is not in order or not below the dataset's {total}"
                             " rows; rerun generate")  # fmt: skip
        last = index
        while index >= (shard + 1) * size:
            yield current
            shard, current = shard + 1, []
        current.append(row)
    for _ in range(shard, -(-total // size)):
        yield current
        current = []


def tokenize(
    cfg: Mapping[str, Any],
    generated: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: str,
    vocab_size: int,
    output: str | Path,
) -> list[ShardEntry]:
    """Write a dataset's token shards and manifest into `output`.

    `cfg` is the tokenize slice with `dataset`; `target` the target's fingerprint, `vocab_size` its embedding rows.
    Raises InputError naming file and row for what no generate job writes, and when every conversation was dropped.
    """
    output, dataset = Path(output), cfg["dataset"]
    work = Tokenizing(tokenizer, cfg, vocab_size, str(generated))
    entries = []
    shards = by_shard(read_jsonl_zst(generated), cfg["tokenize"]["rows_per_shard"], dataset["rows"], str(generated))
    for number, part in enumerate(shards):
        rows = [row for start in range(0, len(part), BATCH) for row in work.rows(part[start : start + BATCH])]
        path = output / f"{number:05d}.parquet"
        entries.append(write_shard(path, rows, dataset=dataset["name"], target=target))
    _remove_others(output, {entry.name for entry in entries})
    kept = sum(entry.rows for entry in entries)
    if work.counted["conversations"] and not kept:
        raise InputError(f"{generated}: no row can be trained on; dropped: {json.dumps(dict(work.dropped))}")
    counted = {key: value for key, value in sorted(work.counted.items()) if value}
    write_manifest(output, dataset=dataset["name"], target=target, slice=dict(cfg), shards=entries,
                   dropped=dict(sorted(work.dropped.items())), counted=counted,
                   special=special_token_ids(tokenizer) | work.reader.ends)  # fmt: skip
    return entries


def _remove_others(folder: Path, names: set[str]) -> None:
    """A dataset that shrank leaves shards behind that no manifest names; nothing may take them for its own."""
    for path in folder.glob("[0-9][0-9][0-9][0-9][0-9].parquet"):
        if path.stem not in names:
            path.unlink()
