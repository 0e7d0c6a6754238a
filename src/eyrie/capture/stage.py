"""One dataset's capture: find what the store has, run the target over the rest, link the results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.capture.batches import plan
from eyrie.capture.engine import CaptureEngine, Settings
from eyrie.capture.store import HiddenStore, check_disk, human, needed_bytes, place
from eyrie.errors import InputError
from eyrie.files import sha256_file
from eyrie.shards.hidden import HiddenHeader, HiddenWriter
from eyrie.shards.manifest import HiddenEntry, write_manifest
from eyrie.shards.tokens import ShardEntry, TokenRow, TokensManifest, read_manifest

if TYPE_CHECKING:
    from eyrie.target import TargetReceipt

PROGRESS_SECONDS = 10.0
Open = Callable[[Settings, "TargetReceipt"], CaptureEngine]


@dataclass
class Counts:
    """What a job did. `seconds` is the time spent running the target, its loading left out."""

    captured: int = 0
    reused: int = 0
    tokens: int = 0
    padded: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    seconds: float = 0.0


class Capture:
    """The capture of one dataset's token shards by one target.

    `open_engine` loads the target; it is called once, and only when a shard with rows is missing.
    """

    def __init__(
        self, slice: dict[str, Any], receipt: TargetReceipt, tokens: Path, store: Path, open_engine: Open
    ) -> None:
        self.receipt = receipt
        self.settings = Settings.from_slice(slice, receipt.layers)
        self.tokens: TokensManifest = read_manifest(tokens)
        if self.tokens.target != receipt.fingerprint:
            raise InputError(
                f"{tokens}: tokenized for target {self.tokens.target}, not {receipt.name} ({receipt.fingerprint}); "
                f"delete it and run `snakemake tokenize`"
            )
        self.store = HiddenStore(store)
        self.open_engine = open_engine
        self.engine: CaptureEngine | None = None
        self.counts = Counts()

    def header(self, entry: ShardEntry) -> HiddenHeader:
        """The header of the hidden-state shard of a token shard."""
        return HiddenHeader(
            rows=entry.rows,
            tokens=entry.tokens,
            hidden_size=self.receipt.hidden_size,
            aux=self.settings.aux,
            dtype=self.settings.store_dtype,
            source_sha256=entry.sha256,
            target=self.receipt.fingerprint,
            settings=self.settings.to_json(),
        )

    def run(self, output: Path, dataset: str) -> Counts:
        """Bring every shard into the store and `output`, and write the manifest there.

        Raises MissingError before the target is loaded when the disk cannot hold what is missing.
        """
        headers = {entry.name: self.header(entry) for entry in self.tokens.shards}
        missing = [entry for entry in self.tokens.shards if not self._present(headers[entry.name], output, entry.name)]
        need = needed_bytes([headers[entry.name] for entry in missing])
        check_disk(self.store.folder, need)
        output.mkdir(parents=True, exist_ok=True)
        if os.stat(output).st_dev != os.stat(self.store.folder).st_dev:
            check_disk(output, needed_bytes(headers.values()))
        entries = []
        try:
            for entry in self.tokens.shards:
                header = headers[entry.name]
                if entry in missing:
                    self._fill(entry, header)
                else:
                    self.counts.reused += 1
                entries.append(self._deliver(entry, header, output))
        finally:
            if self.engine is not None:
                self.engine.close()
                self.engine = None
        write_manifest(output, dataset=dataset, target=self.receipt.fingerprint, aux=self.settings.aux, shards=entries)
        return self.counts

    def _present(self, header: HiddenHeader, output: Path, name: str) -> bool:
        fault = self.store.check(header)
        if fault:
            log(f"{name}: damaged in the store, will be captured again ({fault})")
        return fault is None or self.store.adopt(header, output / f"{name}.safetensors")

    def _fill(self, entry: ShardEntry, header: HiddenHeader) -> None:
        with self.store.lock(header):
            if self.store.check(header) is None:  # another job was faster
                self.counts.reused += 1
                return
            check_disk(self.store.folder, needed_bytes([header]))
            shard = self.tokens.read(entry)
            rows = [shard.row(i) for i in range(len(shard))]
            self._check_lengths(entry, rows)
            if rows and self.engine is None:
                self.engine = self.open_engine(self.settings, self.receipt)
            with self.store.create(header) as file:
                writer = HiddenWriter(file, header, [len(row.input_ids) for row in rows])
                self._capture(entry.name, [row.input_ids for row in rows], [row.id for row in rows], writer)
                writer.close()
            self.counts.captured += 1

    def _check_lengths(self, entry: ShardEntry, rows: Sequence[TokenRow]) -> None:
        """Beyond its last position a target computes states, but none that it was trained to have."""
        longest = max(rows, key=lambda row: len(row.input_ids), default=None)
        limit = self.receipt.max_position_embeddings
        if longest is not None and len(longest.input_ids) > limit:
            raise InputError(
                f"{self.tokens.path(entry)}: row {longest.id} has {len(longest.input_ids)} tokens and "
                f"{self.receipt.name} {limit} positions; set tokenize.max_length to no more than that"
            )

    def _capture(self, name: str, rows: Sequence[Any], ids: Sequence[str], writer: HiddenWriter) -> None:
        total, done = sum(len(row) for row in rows), 0
        started = spoken = time.monotonic()
        for batch in plan([len(row) for row in rows], self.settings.batch_tokens):
            assert self.engine is not None  # opened by the caller when there are rows
            states = self.engine.capture([rows[row] for row in batch.rows], batch.length)
            for row, row_states in zip(batch.rows, states, strict=True):
                try:
                    writer.add(row, row_states, ids[row])
                except InputError as error:
                    raise InputError(f"{self.tokens.folder}/{name}.parquet: {error}") from None
                done += len(row_states)
            self.counts.padded += batch.padded_tokens
            now = time.monotonic()
            if now - spoken > PROGRESS_SECONDS:
                spoken = now
                rate = done / (now - started)
                log(f"{name}: {done:,} of {total:,} tokens, {rate:,.0f} tokens/s, {(total - done) / rate:,.0f} s left")
        self.counts.tokens += total
        self.counts.seconds += time.monotonic() - started

    def _deliver(self, entry: ShardEntry, header: HiddenHeader, output: Path) -> HiddenEntry:
        """Link the stored shard into the results."""
        stored, result = self.store.path(header), output / f"{entry.name}.safetensors"
        # Snakemake calls a result older than its inputs outdated for ever, and a link has the age of the stored file.
        if os.stat(stored).st_mtime < os.stat(self.tokens.path(entry)).st_mtime:
            os.utime(stored)
        place(stored, result)
        size = os.stat(stored).st_size
        self.counts.bytes += size
        self.counts.raw_bytes += header.raw_bytes
        return HiddenEntry(
            name=entry.name,
            sha256=sha256_file(stored),
            source_sha256=entry.sha256,
            rows=entry.rows,
            tokens=entry.tokens,
            bytes=size,
            raw_bytes=header.raw_bytes,
        )


def describe(dataset: str, counts: Counts) -> str:
    """The closing line of a job."""
    line = f"{dataset}: {counts.captured} shards captured, {counts.reused} from the store; {human(counts.bytes)}"
    if counts.bytes:
        line += f", {counts.raw_bytes / counts.bytes:.2f} times smaller than raw"
    if counts.tokens:
        line += (
            f"; {counts.tokens:,} tokens at {counts.tokens / max(counts.seconds, 1e-9):,.0f} tokens/s, "
            f"{counts.padded / counts.tokens - 1:.1%} padding"
        )
    return line


def log(text: str) -> None:
    """One line of progress on stderr."""
    print(f"capture: {text}", file=sys.stderr, flush=True)
