"""Copying heads at the start: what followed the same token before is the first draft, without a step of training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyrie.drafter.config import DrafterConfig
from eyrie.drafter.model import Drafter
from eyrie.shards.aux import AuxLayers
from eyrie.train.copying import Sample, add_copying_heads

SIZE, VOCAB, TEXT = 128, 400, 40


def drafter(heads: int, pairs: int) -> Drafter:
    config = DrafterConfig.from_target(
        {"model_type": "llama", "hidden_size": SIZE, "num_attention_heads": heads, "num_key_value_heads": pairs,
         "intermediate_size": 64, "rms_norm_eps": 1e-5, "vocab_size": VOCAB, "max_position_embeddings": 512,
         "rope_theta": 100000.0, "head_dim": SIZE // 4, "num_hidden_layers": 8},
        {"draft_vocab_size": VOCAB, "intermediate_size": None, "num_attention_heads": None,
         "num_key_value_heads": None, "head_dim": None, "fc_norm": True, "norm_output": False},
        context_length=512, aux=AuxLayers.default(8),
    )  # fmt: skip
    torch.manual_seed(0)
    made = Drafter(config, torch.zeros(VOCAB, dtype=torch.int64), torch.ones(VOCAB, dtype=torch.bool))
    with torch.no_grad():
        made.embed_tokens.weight.normal_()
        made.lm_head.weight.copy_(made.embed_tokens.weight)
        made.fc.weight.zero_()
        made.fc.weight[:, -SIZE:] += torch.eye(SIZE)
    return made


def aux_of(made: Drafter, tokens: Tensor) -> Tensor:
    """States that know the token in the low part and nothing useful elsewhere: `[T, 3H]`."""
    noise = torch.Generator().manual_seed(int(tokens.sum()))
    low = made.embed(tokens) + 0.3 * torch.randn(len(tokens), SIZE, generator=noise)
    return torch.cat([low, torch.randn(len(tokens), 2 * SIZE, generator=noise)], dim=-1)


@torch.no_grad()
def copied(made: Drafter, tokens: Tensor) -> float:
    """Share of the second half's slots whose draft is the token that followed in the first half."""
    states = made.fuse(aux_of(made, tokens))[:-1]
    positions = torch.arange(len(tokens) - 1)[None]
    outputs = made.layer(made.embed(tokens[1:])[None], states[None], positions)
    drafts = made.logits(outputs)[0].argmax(dim=-1)
    return float((drafts[TEXT:-1] == tokens[TEXT + 2 :]).double().mean())


@pytest.mark.parametrize(("heads", "pairs", "copying"), [(4, 2, 2), (4, 1, 1), (4, 4, 2)])
def test_an_untrained_drafter_with_copying_heads_repeats_what_followed_the_same_token(
    heads: int, pairs: int, copying: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    made = drafter(heads, pairs)
    text = torch.randperm(VOCAB, generator=generator)[:TEXT].repeat(2)
    before = copied(made, text)
    seen = torch.randint(0, VOCAB, (4000,), generator=generator)
    assert add_copying_heads(made, made.lm_head.weight, Sample(seen, aux_of(made, seen)), generator) == copying
    assert before < 0.1
    assert copied(made, text) > 0.6


def test_copying_heads_are_the_same_for_the_same_seed() -> None:
    seen = torch.randint(0, VOCAB, (3000,), generator=torch.Generator().manual_seed(2))
    found = []
    for _ in range(2):
        made = drafter(4, 2)
        add_copying_heads(made, made.lm_head.weight, Sample(seen, aux_of(made, seen)), torch.Generator().manual_seed(3))
        found.append(torch.cat([parameter.detach().flatten() for parameter in made.parameters()]))
    assert torch.equal(*found)
