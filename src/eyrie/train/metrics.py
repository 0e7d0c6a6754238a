"""The training log: JSON Lines that hold no time, so a resumed run writes the same bytes, and TensorBoard beside it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from eyrie.files import canonical_json


def rounded(value: Any) -> Any:
    """Floats at six significant digits, at any depth; NaN and infinity as None."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


class Metrics:
    """Appends records to a JSON Lines file, and their numbers to TensorBoard."""

    def __init__(self, path: Path, size: int, board: Path | None, step: int) -> None:
        """Go on at byte `size`: what a killed run wrote after its last checkpoint is written again."""
        self.file = open(path, "ab")
        self.file.truncate(size)
        self.file.seek(size)
        self.board = None
        if board is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(board), purge_step=step + 1)

    def write(self, record: dict[str, Any], **timings: float) -> None:
        """Append `record`; its numbers and `timings` (TensorBoard only) are curves over `record["step"]`."""
        self.file.write(canonical_json(rounded(record)).encode() + b"\n")
        if self.board is not None:
            for name, value in _flat({**record, **timings}):
                if name != "step":
                    self.board.add_scalar(name, value, record["step"])

    def sync(self) -> int:
        """Make the file durable; returns its size in bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        """Flush and close both."""
        self.sync()
        self.file.close()
        if self.board is not None:
            self.board.close()


def _flat(value: Any, prefix: str = "") -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [pair for key, part in value.items() for pair in _flat(part, f"{prefix}/{key}" if prefix else str(key))]
    if isinstance(value, list | tuple):
        return [pair for at, part in enumerate(value) for pair in _flat(part, f"{prefix}/{at}")]
    return [(prefix, float(value))] if isinstance(value, int | float) else []
