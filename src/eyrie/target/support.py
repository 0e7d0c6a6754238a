"""Which models the built-in CPU engine runs; apart from it, so that asking needs no torch."""

from __future__ import annotations

from typing import Any

from eyrie.errors import InputError


def check_supported(config: dict[str, Any], where: str) -> None:
    """Raise InputError unless `config` (config.json) is a plain Llama: that architecture, SiLU, no biases."""
    names = config.get("architectures") or ["unknown"]
    reasons = []
    if names != ["LlamaForCausalLM"]:
        reasons.append(f"its architecture is {', '.join(names)}")
    reasons += [f"it has {key}" for key in ("attention_bias", "mlp_bias", "quantization_config") if config.get(key)]
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        reasons.append(f"its activation is {config['hidden_act']}")
    if reasons:
        raise InputError(
            f"{where}: the built-in CPU engine runs plain LlamaForCausalLM models only, and {'; '.join(reasons)}; "
            "serve this target with SGLang or vLLM and set gateway=openai"
        )
