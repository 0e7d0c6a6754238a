"""What a serving engine would silently do with an EAGLE-3 folder: the rules behind `eyrie check` and `load_drafter`.

No engine raises an error for any of these; each one was a real checkpoint that served at an acceptance of about 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eyrie.drafter.config import ARCHITECTURE, read_rope
from eyrie.errors import InputError
from eyrie.files import read_json

WEIGHTS = "model.safetensors"
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps", "vocab_size",
          "max_position_embeddings")  # fmt: skip


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors of an exported drafter. Raises InputError when a file is missing or damaged."""
    folder = Path(folder)
    config = read_json(folder / "config.json", hint="this must be the folder that `eyrie train` writes")
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            return config, {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError:
        raise InputError(f"{folder}: no {WEIGHTS}; a drafter's weights must lie there") from None
    except SafetensorError as error:
        raise InputError(f"{folder / WEIGHTS}: damaged ({error}); export it again") from None


def inspect(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: Mapping[str, Any] | None = None
) -> list[str]:
    """Every problem found, one sentence each; an empty list means both engines serve what was trained.

    `target`: the target's text config (config.json, `text_config` unwrapped), for the rules that need it.
    """
    problems = inspect_config(config, target)
    if _lacking(config):
        return problems
    return problems + _vocabulary(config, tensors) + _names(config, tensors) + _values(tensors)


def inspect_config(config: Mapping[str, Any], target: Mapping[str, Any] | None = None) -> list[str]:
    """The rules that need no tensors: a training that would end in a refused export is refused before it begins."""
    missing = _lacking(config)
    if missing:
        return [f"config.json lacks {', '.join(missing)}: engines would fill in a Llama-7B default"]
    problems = [*_shape_of_config(config), *_context(config, target), *_aux(config, target)]
    return problems + (_against(config, target) if target is not None else [])


def _lacking(config: Mapping[str, Any]) -> list[str]:
    return [key for key in NEEDED if config.get(key) is None]


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The float tensors a folder must hold, by name."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, fused = config["num_attention_heads"], config.get("target_hidden_size") or config["hidden_size"]
    size = config.get("head_dim") or hidden // heads
    pairs = (config.get("num_key_value_heads") or heads) * size
    shapes = {
        "fc.weight": (hidden, 3 * fused),
        **{f"midlayer.{norm}.weight": (hidden,)
           for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        "midlayer.self_attn.q_proj.weight": (heads * size, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (pairs, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (pairs, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * size),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.get("draft_vocab_size") or config["vocab_size"], hidden),
    }  # fmt: skip
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{chunk}.weight": (fused,) for chunk in range(3)}
    return shapes


def _shape_of_config(config: Mapping[str, Any]) -> list[str]:
    problems = []
    if config.get("architectures") != [ARCHITECTURE] or config.get("model_type") != "llama":
        problems.append(
            f"architectures={config.get('architectures')} with model_type={config.get('model_type')!r}: only "
            f'["{ARCHITECTURE}"] with "llama" is served by both engines as the layer trained here'
        )
    if config.get("num_hidden_layers") != 1:
        problems.append(
            f"num_hidden_layers={config.get('num_hidden_layers')}: engines would build layers without weights"
        )
    if config.get("tie_word_embeddings") is not False:
        problems.append("tie_word_embeddings is not false: SGLang would use the target's embedding as the draft head")
    if config.get("draft_vocab_size") is None:
        problems.append("draft_vocab_size is missing: SGLang would borrow the target's head and ignore this one")
    if config.get("norm_before_residual"):
        problems.append("norm_before_residual is true: SGLang ignores the key and adds the un-normed state")
    for key in ("attention_bias", "mlp_bias", "bias"):
        if config.get(key):
            problems.append(f"{key} is true: no such tensors exist here, so engines would leave biases random")
    return problems


def _context(config: Mapping[str, Any], target: Mapping[str, Any] | None) -> list[str]:
    """The context to serve is what the export recorded; a foreign folder must reach the target's, and 4096 at least."""
    limit, written = config["max_position_embeddings"], (config.get("eyrie") or {}).get("context_length")
    needed = written or (target or {}).get("max_position_embeddings") or 4096
    if limit >= needed:
        return []
    return [
        f"max_position_embeddings={limit} looks like a training length, not the context to serve ({needed} tokens): "
        "beyond it vLLM stops with a device assert and SGLang reads rope values that do not exist"
    ]


def _aux(config: Mapping[str, Any], target: Mapping[str, Any] | None) -> list[str]:
    eagle = config.get("eagle_config") or {}
    nested, top = eagle.get("eagle_aux_hidden_state_layer_ids"), config.get("eagle_aux_hidden_state_layer_ids")
    problems = []
    if nested is None:
        problems.append(
            "eagle_config.eagle_aux_hidden_state_layer_ids is missing: SGLang would capture its default layers"
        )
    if top is None:
        problems.append(
            "eagle_aux_hidden_state_layer_ids is missing at the top level: vLLM would capture its default layers"
        )
    if eagle.get("use_aux_hidden_state") is not True:
        problems.append("eagle_config.use_aux_hidden_state is not true: the drafter would be fed the final state only")
    for place, ids in (("eagle_config", nested), ("the top level", top)):
        if ids is not None and (len(ids) != 3 or len(set(ids)) != 3):
            problems.append(
                f"aux layers {ids} in {place} collide or are not three: engines would fuse fewer states than fc reads"
            )
        elif ids is not None and list(ids) != sorted(ids):
            problems.append(f"aux layers {ids} in {place} do not ascend: engines concatenate them in layer order")
    if nested is not None and top is not None and [index + 1 for index in nested] != list(top):
        problems.append(
            f"SGLang's aux layers {nested} (outputs) and vLLM's {top} (inputs) are not the same states: "
            "each vLLM id must be SGLang's plus one"
        )
    layers = (target or {}).get("num_hidden_layers") or (config.get("eyrie") or {}).get("target_layers")
    if top and layers and not all(1 <= index < layers for index in top):
        problems.append(f"aux layers {top} reach outside the target's {layers} layers")
    if nested and nested[0] != 1:
        problems.append(
            f"the first SGLang aux layer is {nested[0]}, not 1: SGLang since May 2026 then drops its +1 and reads "
            "the states one layer too early; such layers need an export of their own for each engine"
        )
    return problems


def _vocabulary(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    size, whole = config.get("draft_vocab_size") or config["vocab_size"], config["vocab_size"]
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if size == whole:
        if d2t is not None and bool((d2t != 0).any()):
            return ["d2t shifts ids although the draft vocabulary is the whole one: every draft would be another token"]
        return []
    problems = []
    if d2t is None:
        problems.append(
            f"d2t is missing although the head has {size} of {whole} tokens: vLLM would take draft ids for target "
            f"ids 0 to {size - 1} and reject nearly every draft"
        )
    if t2d is None:
        problems.append("t2d is missing: nothing says which target tokens the head covers, so d2t cannot be checked")
    if t2d is not None and (t2d.dtype != torch.bool or t2d.shape != (whole,) or int(t2d.sum()) != size):
        problems.append(f"t2d is {t2d.dtype}{list(t2d.shape)}; it must be bool[{whole}] with {size} true entries")
        t2d = None
    if d2t is None:
        return problems
    if d2t.dtype != torch.int64 or d2t.shape != (size,):
        return [*problems, f"d2t is {d2t.dtype}{list(d2t.shape)}; it must be int64[{size}]"]
    ids = d2t + torch.arange(size)
    ascending = bool((d2t[1:] > d2t[:-1]).all()) if size > 1 else True
    if t2d is not None and torch.equal(ids, t2d.nonzero().flatten()):
        return problems
    if ascending and (t2d is None or torch.equal(d2t, t2d.nonzero().flatten())):
        problems.append(
            "d2t holds absolute target ids: engines add the draft id to it, so drafts would be wrong tokens"
        )
    elif t2d is not None:
        problems.append("d2t and t2d disagree: d2t[i] + i must be the i-th true entry of t2d")
    elif not (bool((ids[1:] > ids[:-1]).all()) and 0 <= int(ids[0]) and int(ids[-1]) < whole):
        problems.append("d2t[i] + i must ascend within the target's vocabulary")
    return problems


def _names(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    problems = []
    shapes = expected_shapes(config)
    renamed = sorted(name for name in tensors if "layers.0." in name)
    missing = [name for name in shapes if name not in tensors]
    if renamed:
        problems.append(
            f"the layer's tensors are named like {renamed[0]}: releases of SGLang that call the layer midlayer drop "
            "them without a word and serve a random layer; write midlayer.*"
        )
        missing = [name for name in missing if not name.startswith("midlayer.")]
    if "lm_head.weight" in missing:
        problems.append("lm_head.weight is missing: SGLang would serve a random head, acceptance 1.00")
        missing.remove("lm_head.weight")
    problems += [f"{name} is missing: an engine would leave it random" for name in missing]
    for name, tensor in tensors.items():
        if name in shapes and tuple(tensor.shape) != shapes[name]:
            problems.append(f"{name} is {list(tensor.shape)}, config.json asks for {list(shapes[name])}")
    known = {*shapes, "d2t", "t2d", "embed_tokens.weight", *renamed}
    for name in sorted(set(tensors) - known):
        why = "fc_norm is not set in config.json, so " if name.startswith("fc_norm.") else ""
        problems.append(f"{name} is unknown to the engines: {why}they would drop it without a word")
    return problems


def _values(tensors: Mapping[str, Tensor]) -> list[str]:
    return [
        f"{name} holds NaN or infinity"
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not bool(tensor.isfinite().all())
    ]


def _against(config: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    problems = []
    if config["vocab_size"] != target["vocab_size"]:
        problems.append(f"vocab_size={config['vocab_size']}, the target has {target['vocab_size']}: another tokenizer")
    fused = config.get("target_hidden_size") or config["hidden_size"]
    if fused != target["hidden_size"]:
        problems.append(f"fc reads states of {fused} elements, the target's have {target['hidden_size']}")
    elif config["hidden_size"] != target["hidden_size"]:
        problems.append("hidden_size differs from the target's, whose embedding the engines share")
    ours, theirs = read_rope(config), read_rope(target)
    if ours != theirs:
        problems.append(f"rope {ours} is not the target's {theirs}: positions would turn at another rate than trained")
    return problems
