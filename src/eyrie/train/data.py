"""Rows of the corpus with their captured states, each shard bound to its token shard by hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eyrie.errors import InputError
from eyrie.shards import manifest as hidden_manifests
from eyrie.shards import tokens as token_shards
from eyrie.shards.aux import AuxLayers
from eyrie.shards.corpus import Corpus, CorpusRow, Split
from eyrie.shards.hidden import HiddenRow, HiddenShard
from eyrie.shards.manifest import HiddenManifest
from eyrie.shards.tokens import TokenShard, TokensManifest
from eyrie.train.batch import Example


@dataclass(frozen=True)
class Source:
    """A dataset's two folders."""

    tokens: TokensManifest
    hidden: HiddenManifest


class Data:
    """Reads examples of a corpus. Token shards are held in memory, hidden-state shards are mapped."""

    def __init__(self, corpus: Corpus, tokens: Sequence[Path], hidden: Sequence[Path], target: str) -> None:
        """`tokens` and `hidden` are the folders of the corpus's datasets, `target` is the target's fingerprint.

        Raises InputError naming the folder that was made from other inputs than the corpus.
        """
        self.corpus = corpus
        if corpus.target != target:
            raise InputError(f"{corpus.folder}: made for another target; run `snakemake corpus`")
        by_tokens = {found.dataset: found for found in map(token_shards.read_manifest, tokens)}
        by_hidden = {found.dataset: found for found in map(hidden_manifests.read_manifest, hidden)}
        self.sources: dict[str, Source] = {}
        for dataset in corpus.manifest["datasets"]:
            for option, known in (("--tokens", by_tokens), ("--hidden", by_hidden)):
                if dataset not in known:
                    raise InputError(f"{option}: the folder of dataset {dataset}, which the corpus holds, is not given")
            self.sources[dataset] = Source(by_tokens[dataset], by_hidden[dataset])
            self._check(dataset, target)
        self.aux = self._aux()
        self._tokens: dict[tuple[str, str], TokenShard] = {}
        self._hidden: dict[tuple[str, str], HiddenShard] = {}

    def _check(self, dataset: str, target: str) -> None:
        source = self.sources[dataset]
        self.corpus.check_tokens(dataset, source.tokens.folder)
        folder = source.hidden.folder
        if source.hidden.target != target:
            raise InputError(f"{folder}: captured from another target; run `snakemake capture`")
        made = {entry.name: entry.source_sha256 for entry in source.hidden.shards}
        if made != {entry.name: entry.sha256 for entry in source.tokens.shards}:
            raise InputError(
                f"{folder}: captured from other shards than {source.tokens.folder}; run `snakemake capture`"
            )

    def _aux(self) -> AuxLayers:
        found = {source.hidden.aux for source in self.sources.values()}
        if len(found) != 1:
            spelled = sorted(aux.hf for aux in found)
            raise InputError(f"hidden states of different aux layers {spelled} cannot train one drafter; capture again")
        return found.pop()

    def rows(self, split: Split) -> list[CorpusRow]:
        """The rows of a split that train at least one slot, in the corpus's order."""
        return [row for row in self.corpus.split(split) if row.trained > 0]

    def states(self, row: CorpusRow) -> HiddenRow:
        """The captured states of a row, as stored. Raises InputError when its bytes have changed."""
        key = (row.dataset, row.shard)
        if key not in self._hidden:
            hidden = self.sources[row.dataset].hidden
            entry = next((entry for entry in hidden.shards if entry.name == row.shard), None)
            if entry is None:
                raise InputError(
                    f"{hidden.folder}: no shard {row.shard}, which the corpus names; run `snakemake capture`"
                )
            self._hidden[key] = hidden.open(entry)
        return self._hidden[key].row(row.row)

    def read(self, row: CorpusRow) -> Example:
        """One example."""
        key = (row.dataset, row.shard)
        if key not in self._tokens:
            tokens = self.sources[row.dataset].tokens
            self._tokens[key] = tokens.read(next(entry for entry in tokens.shards if entry.name == row.shard))
        found, states = self._tokens[key].row(row.row), self.states(row)
        if found.id != row.id or not len(found.input_ids) == len(states) == row.tokens:
            raise InputError(f"{name(row)}: tokens, states and corpus disagree about this row; run `snakemake corpus`")
        return Example(
            id=name(row),
            tokens=torch.from_numpy(found.input_ids.copy()),
            spans=found.spans,
            aux=states.aux,
            final=states.final,
            argmax=states.argmax,
        )

    def read_all(self, rows: Iterable[CorpusRow]) -> list[Example]:
        """Several examples, in order."""
        return [self.read(row) for row in rows]


def name(row: CorpusRow) -> str:
    """A row's unique name: several rows may share an id, one per turn."""
    return f"{row.dataset}/{row.shard}/{row.row} ({row.id})"
