"""Choose the next token of one row, the same way whatever else is in the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy; `top_p` in (0, 1], `top_k` 0 = off; `seed` fixes every draw of the request."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def generator(self) -> torch.Generator | None:
        """The row's own random stream; None for a greedy row."""
        return None if self.greedy else torch.Generator().manual_seed(self.seed)


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token from logits [V]: temperature, then top-k, then the smallest set whose probability reaches top-p.

    Draws by inversion from one uniform number, so a row uses exactly one number a token.
    """
    scaled = logits.double() / sampling.temperature
    probabilities, order = torch.softmax(scaled, -1).sort(descending=True, stable=True)
    if sampling.top_k:
        probabilities = probabilities[: sampling.top_k]
    cumulative = probabilities.cumsum(-1)
    if sampling.top_p < 1.0:
        total = float(cumulative[-1])
        kept = int(torch.searchsorted(cumulative, sampling.top_p * total)) + 1
        cumulative = cumulative[:kept]
    point = torch.rand((), generator=generator, dtype=torch.float64) * cumulative[-1]
    return int(order[min(int(torch.searchsorted(cumulative, point, right=True)), len(cumulative) - 1)])
