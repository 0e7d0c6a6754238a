"""The drafter before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyrie.drafter.load import target_text_config
from eyrie.shards.aux import AuxLayers
from eyrie.target import load_receipt
from eyrie.train.start import Start, start
from tests.train.tiny_run import DRAFT, LAYERS, SETTINGS, VOCAB, TinyRun


def begin(folder: Path, seed: int = 0) -> Start:
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[: 2 * DRAFT - VOCAB] = True
    t2d[DRAFT:] = True
    receipt = load_receipt(folder / "target.json")
    settings = {**SETTINGS["drafter"], "copying_heads": False}
    return start(
        receipt, target_text_config(receipt), settings, context_length=512, aux=AuxLayers.default(LAYERS),
        d2t=t2d.nonzero().flatten() - torch.arange(DRAFT), t2d=t2d, seed=seed,
        sample=lambda: pytest.fail("no copying heads, no sample"),
    )  # fmt: skip


def test_it_starts_from_the_targets_weights_and_passes_the_high_state(tmp_path: Path) -> None:
    model = TinyRun(tmp_path).model
    made = begin(tmp_path)
    drafter = made.drafter
    ids = drafter.to_target(torch.arange(DRAFT))
    embedding = model.get_input_embeddings().weight
    assert torch.equal(drafter.embed_tokens.weight, embedding) and not drafter.embed_tokens.weight.requires_grad
    assert torch.equal(made.teacher, model.lm_head.weight[ids]) and torch.equal(drafter.lm_head.weight, made.teacher)
    assert not drafter.lm_head.weight.requires_grad
    high = torch.randn(512, 64)
    aux = torch.cat([torch.zeros(512, 128), high], dim=-1)
    fused = drafter.fuse(aux)
    alike = torch.cosine_similarity(fused.detach(), high, dim=-1)
    assert float(alike.mean()) > 0.8


def test_the_seed_fixes_every_weight(tmp_path: Path) -> None:
    TinyRun(tmp_path)
    first, same, other = (begin(tmp_path, seed).drafter.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])
