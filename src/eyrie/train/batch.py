"""Rows laid end to end, with the slots that train: no padding anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eyrie.shards.slots import trained_slots


@dataclass(frozen=True)
class Example:
    """One row as read from the shards: `T` tokens, the target's states at each, and its generated spans.

    `aux [T, 3H]`, `final [T, H]` (after the target's last norm), `argmax int[T]` over the whole vocabulary.
    """

    id: str
    tokens: Tensor
    spans: list[tuple[int, int]]
    aux: Tensor
    final: Tensor
    argmax: Tensor


@dataclass(frozen=True)
class Batch:
    """`N` tokens of `R` rows, flat. Row `r` owns `offsets[r]:offsets[r + 1]`; slot `i` of a row is its token `i`.

    `slots[k] int64[n_k]`: flat indices of the slots trained at step `k`, ascending; those of step `k + 1` are among
    them. Step `k` of slot `f` reads token `f + 1 + k` and is taught by the target's state at `f + 1 + k`.
    `labels int64[m]`: the flat indices of all such teaching positions; `final [m, H]` and `argmax int64[m]` are theirs.
    """

    ids: list[str]
    offsets: list[int]
    tokens: Tensor
    positions: Tensor
    aux: Tensor
    slots: list[Tensor]
    labels: Tensor
    final: Tensor
    argmax: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The batch on a device, its states in `dtype`."""
        moved = {
            name: getattr(self, name).to(device) for name in ("tokens", "positions", "labels", "argmax")
        }  # fmt: skip
        states = {name: getattr(self, name).to(device, dtype) for name in ("aux", "final")}
        return replace(self, slots=[slots.to(device) for slots in self.slots], **moved, **states)


def pack(examples: Sequence[Example], steps: int) -> Batch:
    """Lay rows end to end for `steps` unrolled steps; what follows a row's last teaching position is left out.

    Raises ValueError for a row without a trained slot: the plan must not hold it.
    """
    offsets, slots, labels = [0], [[] for _ in range(steps)], []  # type: ignore[var-annotated]
    kept = []
    for example in examples:
        masks = [trained_slots(example.spans, len(example.tokens), step) for step in range(steps)]
        if not masks[0].any():
            raise ValueError(f"row {example.id} has no trained slot")
        taught = np.zeros(len(example.tokens), dtype=bool)
        for step, mask in enumerate(masks):
            found = np.flatnonzero(mask)
            taught[found + 1 + step] = True
            slots[step].append(found + offsets[-1])
        length = int(np.flatnonzero(taught)[-1]) + 1
        labels.append(np.flatnonzero(taught) + offsets[-1])
        kept.append(slice(0, length))
        offsets.append(offsets[-1] + length)
    flat_labels = torch.from_numpy(np.concatenate(labels))
    local = [flat - start for flat, start in zip(labels, offsets, strict=False)]
    return Batch(
        ids=[example.id for example in examples],
        offsets=offsets,
        tokens=torch.cat([example.tokens[part] for example, part in zip(examples, kept, strict=True)]).long(),
        positions=torch.cat([torch.arange(part.stop) for part in kept]),
        aux=torch.cat([example.aux[part] for example, part in zip(examples, kept, strict=True)]),
        slots=[torch.from_numpy(np.concatenate(found)) for found in slots],
        labels=flat_labels,
        final=torch.cat([example.final[at] for example, at in zip(examples, local, strict=True)]),
        argmax=torch.cat([example.argmax[at] for example, at in zip(examples, local, strict=True)]).long(),
    )
