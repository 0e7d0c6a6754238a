"""The merge itself: one pass over all token shards to place every row, one over the places to count tokens."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyrie.corpus.holdout import held_out, prompt_key
from eyrie.corpus.vocabulary import choose, coverage
from eyrie.errors import InputError
from eyrie.files import sha256_file
from eyrie.shards import corpus as files
from eyrie.shards.corpus import CorpusRow
from eyrie.shards.slots import trained_count
from eyrie.shards.tokens import MANIFEST, TokenRow, TokensManifest, read_manifest


@dataclass(frozen=True)
class Place:
    """A row before the split: where it is, what it was asked, and which conversation group it belongs to."""

    dataset: str
    shard: str
    row: int
    id: str
    tokens: int
    trained: int
    prompt: int  # key of the ids before the first span
    group: int  # key of the prompt that decides the split


def merge(
    cfg: Mapping[str, Any],
    tokens: Sequence[str | Path],
    *,
    target: str,
    vocab_size: int,
    output: str | Path,
) -> dict[str, Any]:
    """Write the corpus of some token folders into `output`; returns its manifest.

    `cfg` is the corpus slice, `target` the target's fingerprint, `vocab_size` its embedding rows V. Raises InputError
    for foreign token folders, ids outside the target, fewer than two prompts or an impossible draft vocabulary.
    """
    output = Path(output)
    manifests = [_checked(Path(folder), target) for folder in tokens]
    names = [manifest.dataset for manifest in manifests]
    if len(set(names)) < len(names):
        raise InputError(f"--tokens: a dataset is given twice ({', '.join(sorted(names))})")
    seed, seen = int(cfg["corpus"]["seed"]), set()
    stats = {name: {"duplicates": 0, "shared_prompt": 0} for name in names}
    places = [place for manifest in manifests for place in _places(manifest, seed, seen, stats[manifest.dataset])]
    rows = _split(places, cfg["corpus"]["holdout"], stats)
    counts = {split: np.zeros(vocab_size, dtype=np.int64) for split in ("train", "holdout")}
    by_shard: dict[tuple[str, str], list[CorpusRow]] = {}
    for row in rows:
        by_shard.setdefault((row.dataset, row.shard), []).append(row)
    for manifest in manifests:
        _count(manifest, by_shard, counts)
    special = {index for manifest in manifests for index in manifest.special}
    vocabulary = choose(counts["train"], cfg["drafter"]["draft_vocab_size"], special)
    files.write_rows(output / files.ROWS, rows, target)
    files.write_vocabulary(output / files.VOCAB, vocabulary, target)
    for name in names:
        mine = [row for row in rows if row.dataset == name]
        held = [row for row in mine if row.split == "holdout"]
        stats[name] |= {
            "train_rows": len(mine) - len(held),
            "holdout_rows": len(held),
            "tokens": sum(row.tokens for row in mine),
            "trained_tokens": sum(row.trained for row in mine if row.split == "train"),
            "holdout_tokens": sum(row.trained for row in held),
        }
    value = {
        "target": target,
        "slice": dict(cfg),
        "datasets": stats,
        "draft_vocab_size": len(vocabulary.d2t),
        "vocab_size": vocab_size,
        "coverage": coverage(vocabulary.counts, vocabulary.t2d),
        "holdout_coverage": coverage(counts["holdout"], vocabulary.t2d),
        "tokens_manifests": {m.dataset: sha256_file(m.folder / MANIFEST) for m in manifests},
    }
    files.write_manifest(output, value)
    return value


def _checked(folder: Path, target: str) -> TokensManifest:
    manifest = read_manifest(folder)
    if manifest.dataset != folder.name:
        raise InputError(f"{folder}: holds dataset {manifest.dataset}; a token folder is named as its dataset")
    if manifest.target != target:
        raise InputError(f"{folder}: was tokenized for target {manifest.target}, not {target};"
                         f" run `snakemake --forcerun tokenize_{manifest.dataset}`")  # fmt: skip
    if not manifest.special:
        raise InputError(f"{folder / MANIFEST}: names no special token; run `snakemake --forcerun"
                         f" tokenize_{manifest.dataset}`")  # fmt: skip
    return manifest


def _places(manifest: TokensManifest, seed: int, seen: set[bytes], stats: dict[str, int]) -> Iterator[Place]:
    """Rows not seen before, in any dataset: the first one stays.

    The turns of a conversation and repeated answers to one prompt share an index; the first prompt of an index
    decides the split for all of them, so no history of a held-out conversation is trained on.
    """
    index, group = None, 0
    for entry in manifest.shards:
        shard = manifest.read(entry)
        for number in range(len(shard)):
            row = shard.row(number)
            prompt = prompt_key(row.input_ids[: row.spans[0][0]], seed)
            if row.index != index:
                index, group = row.index, prompt
            content = _content(row)
            if content in seen:
                stats["duplicates"] += 1
                continue
            seen.add(content)
            yield Place(manifest.dataset, entry.name, number, row.id, len(row.input_ids), trained_count(row.spans),
                        prompt, group)  # fmt: skip


def _content(row: TokenRow) -> bytes:
    """128-bit hash of ids and spans."""
    spans = np.array(row.spans, dtype="<i4").tobytes()
    return hashlib.blake2b(row.input_ids.astype("<i4").tobytes() + b"|" + spans, digest_size=16).digest()


def _split(places: list[Place], share: float, stats: dict[str, dict[str, int]]) -> list[CorpusRow]:
    """Rows with their split. A training row that shares a prompt with a held-out one all the same is left out.

    That happens where two conversations reach the same prompt from different first prompts.
    """
    out = held_out((place.group for place in places), share)
    asked = {place.prompt for place in places if place.group in out}
    rows = []
    for place in places:
        held = place.group in out
        if not held and place.prompt in asked:
            stats[place.dataset]["shared_prompt"] += 1
            continue
        values = {key: value for key, value in asdict(place).items() if key not in ("prompt", "group")}
        rows.append(CorpusRow(**values, split="holdout" if held else "train"))
    return rows


def _count(
    manifest: TokensManifest,
    rows: Mapping[tuple[str, str], list[CorpusRow]],
    counts: dict[str, NDArray[np.int64]],
) -> None:
    """Add how often each token is the label of a trained slot (first draft step), per split."""
    for entry in manifest.shards:
        shard = manifest.read(entry)
        total = len(counts["train"])
        if len(shard.input_ids) and not 0 <= shard.input_ids.min() <= shard.input_ids.max() < total:
            raise InputError(f"{manifest.path(entry)}: a token id is not within the target's {total}")
        trained = shard.trained()
        mine = rows.get((manifest.dataset, entry.name), [])
        for split, sums in counts.items():
            chosen = np.zeros(len(shard), dtype=np.bool_)
            chosen[[row.row for row in mine if row.split == split]] = True
            tokens = shard.input_ids[trained & np.repeat(chosen, np.diff(shard.offsets))]
            sums += np.bincount(tokens, minlength=total)


def report(manifest: Mapping[str, Any]) -> None:
    """One line per dataset and one on the vocabulary, on stderr."""
    for name, counts in manifest["datasets"].items():
        print(f"corpus: {name}: {counts['train_rows']} rows train ({counts['trained_tokens']} tokens),"
              f" {counts['holdout_rows']} held out ({counts['holdout_tokens']} tokens), left out"
              f" {counts['duplicates']} duplicates and {counts['shared_prompt']} with a held-out prompt",
              file=sys.stderr)  # fmt: skip
    held = manifest["holdout_coverage"]
    print(f"corpus: draft vocabulary of {manifest['draft_vocab_size']} of {manifest['vocab_size']} tokens covers"
          f" {manifest['coverage']:.2%} of the trained tokens"
          + (f", {held:.2%} of the held-out ones" if held is not None else ""), file=sys.stderr)  # fmt: skip
