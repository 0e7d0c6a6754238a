"""A GGUF written here, converted, compared with what transformers' own (slow) loader makes of it."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from eyrie.errors import InputError
from eyrie.target.gguf_folder import convert

HEADS, KV_HEADS, HIDDEN, INNER, LAYERS = 4, 2, 64, 96, 2
TEMPLATE = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '<|im_end|>' }}{% endfor %}"


def alphabet():
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write_gguf(path, architecture="llama", pre="smollm", extra=None):
    """A quantized random Llama with a byte-level vocabulary of two merges and three special tokens."""
    random = np.random.default_rng(0)
    letters = alphabet()
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "Ġ" + "a", "ĠĠ"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *([1] * (len(tokens) - 3))])
    writer.add_token_merges(["Ġ a", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)

    def add(name, *shape, kind=gguf.GGMLQuantizationType.Q8_0):
        value = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), HIDDEN)
    add("output_norm.weight", HIDDEN)
    kv = HIDDEN // HEADS * KV_HEADS
    for i in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
        }.items():  # fmt: skip
            add(f"blk.{i}.{name}.weight", *shape, kind=gguf.GGMLQuantizationType.Q4_1)
    if extra:
        add(extra, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    base = tmp_path_factory.mktemp("gguf")
    write_gguf(base / "model.gguf")
    (base / "out").mkdir()
    convert(base / "model.gguf", base / "out")
    return base


def test_every_weight_equals_the_loader_of_transformers(converted):
    from transformers import AutoModelForCausalLM, GgufConfig

    slow = AutoModelForCausalLM.from_pretrained(
        converted, gguf_file="model.gguf", quantization_config=GgufConfig(dequantize=True)
    )
    expected = {name: value.numpy() for name, value in slow.state_dict().items() if name != "lm_head.weight"}
    found = load_file(converted / "out" / "model.safetensors")
    assert set(found) == set(expected)
    for name, value in found.items():
        assert value.dtype == np.float32
        assert np.array_equal(value, expected[name]), name


def test_folder_loads_in_transformers_with_the_right_configuration(converted):
    import torch
    from transformers import AutoModelForCausalLM

    model, notes = AutoModelForCausalLM.from_pretrained(converted / "out", output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"]
    assert model.config.rope_parameters["rope_theta"] == 5000.0
    assert model.config.rms_norm_eps == 1e-5
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == 2 and model.generation_config.pad_token_id == 2
    assert model.dtype == torch.float32


def test_tokenizer_splits_digits_and_keeps_special_tokens(converted):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted / "out")
    text = "<|im_start|>a  a1  2<|im_end|>"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
    # without the digit rule the two spaces before 2 would split as "Ġ", "Ġ", "2"
    assert pieces == ["<|im_start|>", "a", "Ġ", "Ġa", "1", "ĠĠ", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>", "<|im_end|>", "<|im_end|>",
    )  # fmt: skip
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert chat == "user:a<|im_end|>"


def test_conversion_gives_the_same_bytes_twice(converted, tmp_path):
    convert(converted / "model.gguf", tmp_path)
    for path in (converted / "out").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"architecture": "qwen2"}, "qwen2"),
        ({"pre": "llama-bpe"}, "llama-bpe"),
        ({"extra": "blk.0.attn_q_norm.weight"}, "attn_q_norm"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, options, named):
    write_gguf(tmp_path / "model.gguf", **options)
    with pytest.raises(InputError, match=named):
        convert(tmp_path / "model.gguf", tmp_path)
