"""A tiny random Llama with a real byte-level tokenizer, and a server on it."""

from __future__ import annotations

import json

import pytest

from eyrie.gateway.embedded import serve
from eyrie.target.receipt import TargetReceipt, make_receipt

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory) -> str:
    """target.json of a random 2-layer model with 300 tokens; its answers are noise, but real noise."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    base = tmp_path_factory.mktemp("tiny")
    folder = base / "model"
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, max_position_embeddings=512, tie_word_embeddings=True, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*special, *letters])}
    fillers = {f"<unused{i}>": i for i in range(len(vocabulary), 300)}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, **fillers}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>", pad_token="<|im_end|>",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)  # fmt: skip
    receipt: TargetReceipt = make_receipt("Tiny-Llama", folder, {"target": {"name": "Tiny-Llama"}})
    receipt.write(base / "target.json")
    return str(base / "target.json")


@pytest.fixture(scope="session")
def server(tiny_target) -> str:
    """Base URL of a running server, width 8, one thread."""
    with serve(tiny_target, width=8, threads=1) as url:
        yield url


@pytest.fixture(scope="session")
def receipt_json(tiny_target) -> dict:
    return json.load(open(tiny_target))
