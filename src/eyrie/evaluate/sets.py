"""The prompts that are decoded and the texts that are replayed: the hold-out, and named prompt files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eyrie.chat import render_prompt
from eyrie.errors import InputError
from eyrie.evaluate.greedy import Prompt
from eyrie.files import read_jsonl_zst
from eyrie.shards.hidden import HiddenShard
from eyrie.shards.tokens import TokenRow, TokenShard, read_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from eyrie.shards.aux import AuxLayers
    from eyrie.shards.corpus import Corpus


@dataclass(frozen=True)
class Text:
    """A text of the target with the states behind it.

    `tokens int64[T]`, half-open generated `spans`, `aux [T, 3H]`, `argmax int64[T]`: the target's choice after each
    token. The first span follows the prompt.
    """

    prompt: Prompt
    tokens: Tensor
    spans: list[tuple[int, int]]
    aux: Tensor
    argmax: Tensor


@dataclass(frozen=True)
class _Place:
    shard: str
    row: int


class HoldOut:
    """Held-out rows of all datasets, taken in turn from each so that a part of them is still a fair mixture."""

    def __init__(
        self,
        corpus: Corpus,
        tokens: Sequence[Path],
        hidden: Sequence[Path],
        *,
        target: str,
        aux: AuxLayers,
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> None:
        """`tokens` and `hidden` are folders named as their datasets; `target` is the target's fingerprint.

        Raises InputError when a folder is missing for a dataset that has held-out rows, or when none has any.
        """
        self._tokens = {folder.name: folder for folder in tokens}
        self._hidden = {folder.name: folder for folder in hidden}
        self.target, self.aux, self.dtype, self.device = target, aux, dtype, device
        self._shards: dict[tuple[str, str], TokenShard] = {}
        places: dict[str, list[_Place]] = {}
        for row in corpus.split("holdout"):
            places.setdefault(row.dataset, []).append(_Place(row.shard, row.row))
        for name in places:
            if name not in self._tokens or name not in self._hidden:
                raise InputError(f"dataset {name} has held-out rows, but no folder of --tokens and --hidden is its")
            corpus.check_tokens(name, self._tokens[name])
        if not places:
            raise InputError("the corpus holds out no row; raise corpus.holdout or generate more")
        ranks = zip_longest(*([(name, place) for place in places[name]] for name in sorted(places)))
        self.rows = [entry for rank in ranks for entry in rank if entry is not None]

    def __len__(self) -> int:
        return len(self.rows)

    def prompts(self, limit: int) -> list[Prompt]:
        """What was served for the first `limit` rows: their ids up to the first answer."""
        return [_prompt(name, self._shard(name, place.shard).row(place.row)) for name, place in self.rows[:limit]]

    def texts(self, limit: int) -> Iterator[Text]:
        """The first `limit` rows with their captured states, one row in memory at a time."""
        opened: dict[tuple[str, str], HiddenShard] = {}
        for name, place in self.rows[:limit]:
            tokens = self._shard(name, place.shard)
            if (name, place.shard) not in opened:
                opened[name, place.shard] = HiddenShard.open(
                    self._hidden[name] / f"{place.shard}.safetensors",
                    expect_source_sha=tokens.sha256,
                    expect_target=self.target,
                    expect_aux=self.aux,
                )
            row, hidden = tokens.row(place.row), opened[name, place.shard].row(place.row)
            yield Text(
                prompt=_prompt(name, row),
                tokens=torch.from_numpy(row.input_ids.astype("int64")).to(self.device),
                spans=row.spans,
                aux=hidden.aux.to(self.device, self.dtype),
                argmax=hidden.argmax.to(self.device, torch.int64),
            )

    def _shard(self, dataset: str, name: str) -> TokenShard:
        key = (dataset, name)
        if key not in self._shards:
            manifest = read_manifest(self._tokens[dataset])
            entry = next((entry for entry in manifest.shards if entry.name == name), None)
            if entry is None:
                raise InputError(f"{manifest.folder}: no shard {name}, which the corpus names; run `snakemake corpus`")
            self._shards[key] = manifest.read(entry)
        return self._shards[key]


def _prompt(dataset: str, row: TokenRow) -> Prompt:
    return Prompt(dataset, f"{row.id}/{row.turn}", tuple(row.input_ids[: row.spans[0][0]].tolist()))


def benchmark(
    name: str, path: Path, tokenizer: PreTrainedTokenizerBase, limit: int, thinking: bool | None
) -> list[Prompt]:
    """The first `limit` prompts of a prompt file, rendered as the server renders them.

    Raises InputError when the file is missing, damaged or empty.
    """
    found = []
    for row in read_jsonl_zst(path):
        if len(found) == limit:
            break
        ids = render_prompt(tokenizer, row["messages"], row.get("tools") or None, thinking)
        found.append(Prompt(name, str(row["id"]), tuple(ids)))
    if not found:
        raise InputError(f"{path}: holds no prompt; delete it and run `snakemake {path}`")
    return found
