"""What an engine must do for capture, and how one is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eyrie.errors import InputError, MissingError
from eyrie.shards.aux import AuxLayers

if TYPE_CHECKING:
    from eyrie.shards.hidden import HiddenRow
    from eyrie.target import TargetReceipt


class CaptureEngine(Protocol):
    """An open target. Rows come back in the order given, states in the stored dtype, on the CPU."""

    def capture(self, rows: Sequence[np.ndarray], length: int) -> Iterator[HiddenRow]:
        """The states of every row (token ids int32 [T], T <= `length`), run as one batch of that length."""
        ...

    def close(self) -> None:
        """Free the target's memory."""
        ...


@dataclass(frozen=True)
class Settings:
    """The capture slice, resolved for one target.

    `dtype` is the computing type, `store_dtype` that of the shard, `batch_tokens` the tokens of one forward pass,
    padding included.
    """

    engine: str
    aux: AuxLayers
    dtype: str
    store_dtype: str
    batch_tokens: int
    trust_remote_code: bool

    @classmethod
    def from_slice(cls, slice: dict[str, Any], layers: int) -> Settings:
        """From the JSON that the rule passes. Raises InputError for impossible aux layers or a missing key."""
        try:
            capture, target = slice["capture"], slice["target"]
            return cls(
                engine=capture["engine"],
                aux=AuxLayers.from_config(capture["aux_layers"], layers),
                dtype=target["dtype"],
                store_dtype=capture["store_dtype"],
                batch_tokens=capture["batch_tokens"],
                trust_remote_code=target["trust_remote_code"],
            )
        except KeyError as error:
            raise InputError(f"--slice: no key {error}; print one with `eyrie config --slice capture`") from None

    def to_json(self) -> dict[str, Any]:
        """What decides the values besides the target and the token shard, for the shard's header."""
        return {"engine": self.engine, "compute_dtype": self.dtype, "batch_tokens": self.batch_tokens}


def choose_device(gpus: int) -> str:
    """`cuda` when GPUs were asked for, else `cpu`. Raises MissingError when fewer are there than asked for."""
    if gpus <= 0:
        return "cpu"
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < gpus:
        raise MissingError(
            f"capture asks for {gpus} GPU(s) and this process sees {found}; run on a machine that has them with "
            f"`snakemake --resources gpu={gpus}`, or set resources.capture.gpu={found}"
        )
    return "cuda"


def open_engine(settings: Settings, receipt: TargetReceipt, device: str) -> CaptureEngine:
    """Load the target into the engine that the settings name."""
    if settings.engine == "transformers":
        from eyrie.capture.transformers_engine import TransformersEngine

        return TransformersEngine.load(settings, receipt, device)
    raise InputError(
        f"capture.engine={settings.engine}: not an engine of this version; use capture.engine=transformers"
    )
