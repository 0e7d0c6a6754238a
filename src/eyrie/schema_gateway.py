"""The typed schema of `gateway`: who answers, which endpoints may, and a server that a job starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

# OpenRouter's names. In its request filter `fp8` lets mxfp8 in as well and `fp4` all kinds of it; here each is itself.
QUANTIZATIONS = ("int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown")
PARAMETERS = (
    "tools", "tool_choice", "parallel_tool_calls", "reasoning", "include_reasoning", "reasoning_effort",
    "response_format", "structured_outputs", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "top_a", "min_p", "seed", "stop", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
    "logprobs", "top_logprobs", "verbosity", "web_search_options",
)  # fmt: skip


class GatewayKind(Enum):
    embedded = "embedded"  # a small real model in a child process on this machine
    openrouter = "openrouter"  # paid
    openai = "openai"  # any OpenAI-compatible server


class LaunchEngine(Enum):
    sglang = "sglang"
    vllm = "vllm"


class Sort(Enum):
    """Which of the allowed endpoints OpenRouter asks first."""

    price = "price"
    throughput = "throughput"  # the end of a run comes sooner, since its last long answers are written faster
    latency = "latency"


@dataclass
class Policy:
    """Which endpoints may answer (OpenRouter's catalogue)."""

    quantizations: list[str] = field(default_factory=list)  # allowed; empty = any that is declared
    allow_tags: list[str] = field(default_factory=list)  # empty = any
    deny_tags: list[str] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)  # tag -> why an undeclared quantization is right
    min_uptime: float = 0.0  # percent over the last day; unknown uptime passes
    max_prompt_price: float | None = None  # USD per million tokens
    max_completion_price: float | None = None
    min_context: int = 0  # tokens
    parameters: list[str] = field(default_factory=list)  # request parameters an endpoint must support
    data_collection: str = "deny"  # allow | deny: hosts that may store prompts
    zdr: bool = False  # only hosts with zero data retention
    # Hosts that fix sampling values, by tag or provider slug; one that fixes another value than ours gets no request.
    fixed_sampling: dict[str, dict[str, float]] = field(default_factory=dict)
    distillable: bool = False  # demand the catalogue's distillable flag


@dataclass
class Launch:
    """A server of the target that a generate job starts on its own GPUs and stops (gateway=sglang, gateway=vllm)."""

    engine: LaunchEngine | None = None  # null: none is started, gateway.base_url names a running one
    command: list[str] = field(default_factory=list)  # empty: `python -m sglang.launch_server`, `vllm serve`
    args: dict[str, Any] = field(default_factory=dict)  # its options: {tp-size: 8} is --tp-size 8, true a bare one
    ready_s: float = 3600.0  # longest wait for its first answer; loading a large model takes minutes


@dataclass
class Gateway:
    """Where the target's answers come from."""

    kind: GatewayKind = MISSING
    base_url: str | None = None  # null: OpenRouter's own; embedded: a port of its own on loopback
    launch: Launch = field(default_factory=Launch)  # openai: a server that the job starts, instead of base_url
    ask_token_ids: bool = True  # openai: ask for token ids (SGLang, vLLM); false for a server that refuses the option
    api_key_file: str | None = None  # else the environment variable OPENROUTER_API_KEY
    account: str = "default"  # name under which the vault books what this key spends
    account_budget_usd: float | None = None  # of all runs on this account together; null = each run's own only
    allow_byok: bool = False  # go on when the account's own provider keys answer: their bills are not seen here
    stream: bool | None = None  # null: long answers through OpenRouter are streamed, all else is not
    sort: Sort | None = None  # openrouter: whom to ask first; null: at random, cheap ones more often (1/price^2)
    usage_lag_s: float = 900.0  # after so long the key's usage surely holds what a lost request cost
    width: int = 32  # embedded: answers decoded together
    policy: Policy = field(default_factory=Policy)
