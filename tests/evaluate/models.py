"""Tiny targets and drafters: random weights, a small vocabulary so that random drafts are sometimes right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import LlamaConfig, LlamaForCausalLM

from eyrie.drafter.config import DrafterConfig
from eyrie.drafter.model import Drafter
from eyrie.evaluate.engine import TargetEngine
from eyrie.evaluate.greedy import Prompt
from eyrie.evaluate.packed_engine import PackedEngine
from eyrie.evaluate.transformers_engine import TransformersEngine
from eyrie.shards.aux import AuxLayers
from eyrie.target.llama import Llama

VOCAB = 7
AUX = AuxLayers.from_hf((1, 2, 3), 5)


def tiny_model(vocab: int = VOCAB, seed: int = 0) -> LlamaForCausalLM:
    """Five layers, hidden 64, grouped heads; weights large enough that the answer wanders through the vocabulary."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def memoryless(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same model with its layers silenced: the next token depends on the last one only."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def engines(model: LlamaForCausalLM) -> dict[str, TargetEngine]:
    """Both engines over one model."""
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    packed = Llama(config, model.state_dict())
    return {"transformers": TransformersEngine(model, AUX.hf), "packed": PackedEngine(packed, AUX.hf)}


def tiny_drafter(model: LlamaForCausalLM, seed: int = 0, kept: int | None = None) -> Drafter:
    """A random drafter for `model`; `kept` is the size of its vocabulary, the highest ids of the target's."""
    vocab = model.config.vocab_size
    kept = kept or vocab
    shape = DrafterConfig(
        hidden_size=64, target_hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, vocab_size=vocab,
        draft_vocab_size=kept, max_position_embeddings=512, aux=AUX,
    )  # fmt: skip
    torch.manual_seed(seed)
    t2d = torch.arange(vocab) >= vocab - kept
    drafter = Drafter(shape, t2d.nonzero()[:, 0] - torch.arange(kept), t2d)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
        drafter.embed_tokens.weight.copy_(model.get_input_embeddings().weight)
    return drafter.eval()


class Oracle(torch.nn.Module):
    """Knows a memoryless target and drafts what it will say; with `shift` it is always wrong."""

    def __init__(self, model: LlamaForCausalLM, shift: int = 0) -> None:
        super().__init__()
        vocab = model.config.vocab_size
        self.register_buffer("d2t", torch.zeros(vocab, dtype=torch.int64))
        with torch.inference_mode():
            said = model(torch.arange(vocab)[:, None]).logits[:, -1].argmax(-1)
        self.after = (said + shift) % vocab

    def fuse(self, aux: Tensor) -> Tensor:
        return aux

    def embed(self, tokens: Tensor) -> Tensor:
        return one_hot(tokens, len(self.after)).float()

    def layer(self, embeds: Tensor, hidden: Tensor, positions: Tensor, cache=None, mask=None) -> Tensor:
        return embeds

    def logits(self, states: Tensor) -> Tensor:
        return one_hot(self.after[states.argmax(-1)], len(self.after)).float()

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids


def some_prompts(count: int, vocab: int = VOCAB, seed: int = 1) -> list[Prompt]:
    """Distinct prompts of 1 to 20 random tokens, of two datasets; the first is a single token."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        length = int(torch.randint(5, 21, (1,), generator=generator)) if number else 1
        ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
        made.append(Prompt(("one", "two")[number % 2], f"p{number}", tuple(ids)))
    return made
