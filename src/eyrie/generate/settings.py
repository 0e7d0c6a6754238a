"""What one generate job was told: the slice (decides the answers) and the runtime (decides how they are bought)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eyrie.errors import InputError
from eyrie.gateway.quality import Quality
from eyrie.gateway.request import Sampling, streams
from eyrie.schema import Reserve
from eyrie.vault.money import microdollars
from eyrie.vault.records import Limits


@dataclass(frozen=True)
class Settings:
    """One job's settings, checked."""

    # from the slice
    dataset: str
    gateway: str
    target: str
    openrouter_model: str | None
    thinking: bool | None
    sampling: Sampling
    repetitions: int
    user_turns: int
    token_budget: int | None  # output tokens
    up_to: bool  # the budget was made to fit: a dataset that runs out of rows before it is complete all the same
    drop_cut: bool  # answers cut at max_tokens are no data
    max_pieces: int  # requests that one answer may take; 1 = a cut answer stays cut
    rebuy: bool
    continued: bool  # completes what was built on before it was complete
    # from the runtime
    run: str
    account: str
    base_url: str | None
    api_key_file: str | None
    width: int
    in_flight: int
    slots_per_client: int
    limits: Limits
    reserve: Reserve
    usage_lag_s: float
    max_attempts: int
    max_reject_share: float
    timeout_s: float
    deadline_s: float
    patience_s: float
    partial: bool
    stream: bool
    allow_byok: bool
    quality: Quality | None  # None: whatever the server says is data

    @classmethod
    def read(cls, cut: dict[str, Any], runtime: dict[str, Any], fitted: int | None = None) -> Settings:
        """`fitted`: what `tokens_per_dataset=fit` stands for. Raises InputError when a key or that is missing."""
        try:
            g, d, target, gateway = cut["generate"], cut["dataset"], cut["target"], runtime["gateway"]
            if cut["gateway"]["kind"] != gateway["kind"]:
                raise InputError(f"--slice is for gateway {cut['gateway']['kind']}, --runtime for {gateway['kind']}")
            account, dataset = gateway["account_budget_usd"], runtime["dataset_budgets_usd"].get(d["name"])
            kind, max_tokens = gateway["kind"], d["max_tokens"] or g["max_tokens"]
            tokens = g["tokens_per_dataset"] if d["tokens"] is None else d["tokens"]
            if tokens == "fit" and fitted is None:
                raise InputError("generate.tokens_per_dataset=fit: --fit must name the fit.json that says how many")
            return cls(
                d["name"], gateway["kind"], target["name"], target["openrouter_model"], target["thinking"],
                Sampling(max_tokens, g["temperature"], g["top_p"], g["seed"]),
                g["repetitions"], d["turns"],
                fitted if tokens == "fit" else tokens, tokens == "fit",
                g["on_length"] == "drop", g["max_pieces"] if g["on_length"] == "continue" else 1,
                g["on_changed_request"] == "rebuy", cut.get("continued", False),
                runtime["run"], gateway["account"], gateway["base_url"], gateway["api_key_file"], gateway["width"],
                runtime["in_flight"], runtime["slots_per_client"],
                Limits(_micro(runtime["budget_usd"]), None if account is None else _micro(account),
                       None if dataset is None else _micro(dataset)),
                Reserve(runtime["reserve"]), gateway["usage_lag_s"],
                runtime["max_attempts"], runtime["max_reject_share"], runtime["timeout_s"], runtime["deadline_s"],
                runtime["patience_s"], runtime["on_exhausted"] == "build_partial",
                streams(gateway["stream"], kind, max_tokens), gateway["allow_byok"],
                _quality(kind, runtime["quality"]),
            )  # fmt: skip
        except KeyError as error:
            raise InputError(f"--slice or --runtime lacks the key {error}; print them with `eyrie config`") from None

    def identity_model(self, target_fingerprint: str | None) -> str:
        """The vault's name of the model. A model served here carries its weights' fingerprint: a retrained one under
        the same name is another model. What a server of somebody else's loaded is not known beyond its name."""
        if self.gateway == "openrouter":
            return str(self.openrouter_model)
        return self.target if target_fingerprint is None else f"{self.target}@{target_fingerprint}"


def _quality(kind: str, given: dict[str, Any]) -> Quality | None:
    """A small model on this machine loops, and its drafter must foresee that. A server without parsers leaves control
    marks in the text, where they are tokens that were generated; OpenRouter's hosts must not."""
    if kind == "embedded":
        return None
    return Quality(**{**given, "markers": given["markers"] and kind == "openrouter"})


def _micro(usd: float) -> int:
    return microdollars(Decimal(str(usd)))
