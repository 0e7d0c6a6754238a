"""The drafter's shape: taken from the target's config.json and the `drafter` settings, written for both engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyrie.errors import InputError
from eyrie.shards.aux import AuxLayers

ARCHITECTURE = "LlamaForCausalLMEagle3"
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Keys of a target that scale or cap its logits: the frozen head and the teacher would both be wrong without them.
LOGIT_SCALES = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}


@dataclass(frozen=True)
class DrafterConfig:
    """Everything that fixes the drafter's tensors and arithmetic. Sizes in elements, rope positions in tokens.

    `rope_scaling` holds the scaling's own keys with `rope_type` (None: plain RoPE of base `rope_theta`).
    `fc_norm`: one RMSNorm per aux chunk before `fc`. `norm_output`: the next draft step is fed the state after the
    final norm instead of the one before it (both EAGLE-3.1).
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    aux: AuxLayers
    fc_norm: bool = True
    norm_output: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"drafter.num_key_value_heads={self.num_key_value_heads} does not divide "
                f"drafter.num_attention_heads={self.num_attention_heads}"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise InputError(
                f"drafter.draft_vocab_size={self.draft_vocab_size} exceeds the target's vocabulary of {self.vocab_size}"
            )

    @classmethod
    def from_target(
        cls, target: Mapping[str, Any], settings: Mapping[str, Any], *, context_length: int, aux: AuxLayers
    ) -> DrafterConfig:
        """From the target's text config (its config.json, `text_config` unwrapped) and the slice's `drafter` part.

        `context_length` (tokens) becomes `max_position_embeddings`: what the drafter must serve, never the length it
        was trained on. Raises InputError for a target whose logits are scaled or capped.
        """
        for key, neutral in LOGIT_SCALES.items():
            if target.get(key) not in (None, neutral):
                raise InputError(f"the target's config.json sets {key}={target[key]}, which no EAGLE-3 engine applies")
        heads = settings.get("num_attention_heads") or target["num_attention_heads"]
        latent = "kv_lora_rank" in target  # MLA: its head_dim and kv heads do not describe a Llama layer
        theta, scaling = read_rope(target)
        return cls(
            hidden_size=target["hidden_size"],
            target_hidden_size=target["hidden_size"],
            intermediate_size=settings.get("intermediate_size") or target["intermediate_size"],
            num_attention_heads=heads,
            num_key_value_heads=settings.get("num_key_value_heads")
            or (heads if latent else target.get("num_key_value_heads") or heads),
            head_dim=settings.get("head_dim")
            or (target["v_head_dim"] if latent else target.get("head_dim"))
            or target["hidden_size"] // target["num_attention_heads"],
            rms_norm_eps=target.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            vocab_size=target["vocab_size"],
            draft_vocab_size=settings["draft_vocab_size"],
            max_position_embeddings=context_length,
            aux=aux,
            fc_norm=settings.get("fc_norm", True),
            norm_output=settings.get("norm_output", False),
            **{key: target.get(key) for key in TOKEN_IDS},
        )

    def to_json(self, dtype: str) -> dict[str, Any]:
        """The exported config.json. Both engines' spellings of the aux layers stand side by side: SGLang reads only
        the nested list (ids of layers whose *output* is taken), vLLM only the top-level one (whose *input* is taken).

        `eyrie` holds what this project's own loader checks; engines ignore it.
        """
        scaling = dict(self.rope_scaling) if self.rope_scaling else None
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_position_embeddings,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bias": False,
            "torch_dtype": dtype,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": list(self.aux.vllm),
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(self.aux.sglang),
                "use_aux_hidden_state": True,
            },
            "eyrie": {
                "format": "eyrie-drafter-1",
                "context_length": self.max_position_embeddings,
                "target_layers": self.aux.layers,
            },
            **{key: getattr(self, key) for key in TOKEN_IDS},
        }

    @classmethod
    def from_json(cls, config: Mapping[str, Any], *, target_layers: int) -> DrafterConfig:
        """From a config.json that the rules in `eyrie.drafter.rules` have passed."""
        theta, scaling = read_rope(config)
        same = ("hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps", "vocab_size",
                "draft_vocab_size", "max_position_embeddings")  # fmt: skip
        return cls(
            **{key: config[key] for key in same},
            target_hidden_size=config.get("target_hidden_size") or config["hidden_size"],
            num_key_value_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            rope_theta=theta,
            rope_scaling=scaling,
            aux=AuxLayers.from_vllm(config["eagle_aux_hidden_state_layer_ids"], target_layers),
            fc_norm=bool(config.get("fc_norm", False)),
            norm_output=bool(config.get("norm_output", False)),
            **{key: config.get(key) for key in TOKEN_IDS},
        )


def read_rope(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """`(rope_theta, rope_scaling)` from either spelling: `rope_theta` + `rope_scaling`, or `rope_parameters`.

    YaRN's `mscale` keys are left out: the engines' Llama layers ignore them, so a drafter trained with them would be
    served with another attention temperature. Raises InputError for scalings that change with the sequence length.
    """
    parameters = dict(config.get("rope_parameters") or {})
    scaling = {**(config.get("rope_scaling") or {}), **parameters}
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    if kind == "default":
        return float(theta), None
    if kind in ("dynamic", "longrope"):
        raise InputError(f"rope scaling {kind!r} changes with the sequence length, which a drafter cannot follow")
    if kind in ("yarn", "deepseek_yarn"):
        kind = "yarn"
        scaling = {key: value for key, value in scaling.items() if not key.startswith("mscale")}
    if config.get("original_max_position_embeddings"):
        scaling.setdefault("original_max_position_embeddings", config["original_max_position_embeddings"])
    return float(theta), {"rope_type": kind, **scaling}
