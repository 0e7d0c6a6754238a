"""A Llama GGUF file as a Hugging Face folder: float32 safetensors, tokenizer, chat template, generation config.

Written directly rather than through transformers' GGUF loader, which parses the file three times and drops the
pre-tokenizer's digit rule, so that "in 2024" gets other tokens than the model was trained on.
`tests/target/test_gguf_folder.py` compares every weight with that loader's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyrie.errors import InputError
from eyrie.files import write_json

if TYPE_CHECKING:
    import numpy as np

CONVERSION = 1  # raise when the folder written for the same GGUF changes

# How llama.cpp's named pre-tokenizers treat digits before the byte-level split (its `tokenizer.ggml.pre`).
SPLITS_DIGITS = {"smollm": True, "gpt-2": False, "default": False}

TOP_LEVEL = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # GGUF token type of special tokens


def convert(gguf_path: Path, folder: Path) -> None:
    """Write the model in `gguf_path` into `folder`. Raises InputError for anything but a plain Llama with byte BPE."""
    import gguf
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(gguf_path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts.get("general.architecture") != "llama":
        raise InputError(
            f"{gguf_path}: architecture {facts.get('general.architecture')!r}, only llama can be converted; "
            "take the model's Hugging Face folder and set target.source=folder:PATH"
        )
    weights = dict(_weights(reader, facts, gguf_path))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", _config(facts, weights))
    ends = {name: facts[f"tokenizer.ggml.{name}"] for name in ("bos_token_id", "eos_token_id")}
    pad = facts.get("tokenizer.ggml.padding_token_id", ends["eos_token_id"])
    write_json(folder / "generation_config.json", {**ends, "pad_token_id": pad})
    _write_tokenizer(facts, folder, gguf_path, pad)


def _weights(reader: Any, facts: dict[str, Any], where: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors by their names in transformers, float32, each [out, in]."""
    import numpy as np
    from gguf.quants import dequantize

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    for tensor in reader.tensors:
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        kind = layer[2] if layer else tensor.name.removesuffix(".weight")
        known = IN_LAYER if layer else TOP_LEVEL
        if kind not in known:
            raise InputError(f"{where}: tensor {tensor.name} has no place in a plain Llama model")
        name = f"model.layers.{layer[1]}.{known[kind]}.weight" if layer else known[kind]
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if layer and kind in heads:
            # GGUF keeps rotary pairs side by side, transformers in two halves of each head.
            value = value.reshape(heads[kind], -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        yield name, np.ascontiguousarray(value)


def _config(facts: dict[str, Any], weights: dict[str, np.ndarray]) -> dict[str, Any]:
    import numpy as np

    heads = facts["llama.attention.head_count"]
    hidden = facts["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id", facts["tokenizer.ggml.eos_token_id"]),
        "dtype": "float32",
        "torch_dtype": "float32",
        "head_dim": facts.get("llama.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        # the file holds a float32: take its shortest decimal, 1e-05 rather than 9.99999975e-06
        "rms_norm_eps": float(str(np.float32(facts["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": float(facts.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
    }


def _write_tokenizer(facts: dict[str, Any], folder: Path, where: Path, pad: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if facts.get("tokenizer.ggml.model") != "gpt2":
        raise InputError(f"{where}: tokenizer {facts.get('tokenizer.ggml.model')!r}; only byte-level BPE is converted")
    kind = facts.get("tokenizer.ggml.pre", "default")
    if kind not in SPLITS_DIGITS:
        raise InputError(f"{where}: pre-tokenizer {kind!r} is unknown; known: {', '.join(SPLITS_DIGITS)}")
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=facts.get("tokenizer.ggml.add_space_prefix", False))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if SPLITS_DIGITS[kind] else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, type_ in zip(tokens, facts["tokenizer.ggml.token_type"], strict=True) if type_ == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[pad],
    }
    if "tokenizer.ggml.unknown_token_id" in facts:
        names["unk_token"] = tokens[facts["tokenizer.ggml.unknown_token_id"]]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    if template := facts.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template)
