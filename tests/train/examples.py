"""Random rows with the shapes of captured ones."""

from __future__ import annotations

import torch

from eyrie.drafter.model import Drafter
from eyrie.train.batch import Example

# Spans: one turn; several turns, two of them too short for every step; one that ends the row.
SPANS = [[(4, 11)], [(3, 9), (12, 14), (17, 18), (20, 33)], [(1, 4)], [(10, 30)]]


def make_examples(
    drafter: Drafter, spans: list[list[tuple[int, int]]] = SPANS, tail: int = 3, dtype: torch.dtype = torch.float64
) -> list[Example]:
    """One example per entry of `spans`; each row goes on `tail` tokens after its last span."""
    generator = torch.Generator().manual_seed(7)
    config = drafter.config
    examples = []
    for number, found in enumerate(spans):
        length = found[-1][1] + tail
        examples.append(
            Example(
                id=f"row{number}",
                tokens=torch.randint(config.vocab_size, (length,), generator=generator, dtype=torch.int32),
                spans=found,
                aux=torch.randn(length, 3 * config.target_hidden_size, generator=generator, dtype=dtype),
                final=torch.randn(length, config.hidden_size, generator=generator, dtype=dtype),
                argmax=torch.randint(config.vocab_size, (length,), generator=generator, dtype=torch.int32),
            )
        )
    return examples
