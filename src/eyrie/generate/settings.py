"""What one generate job was told: the slice (decides the answers) and the runtime (decides how they are bought)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eyrie.errors import InputError
from eyrie.gateway.request import Sampling
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
    drop_cut: bool  # answers cut at max_tokens are no data
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
    max_attempts: int
    max_reject_share: float
    timeout_s: float
    patience_s: float
    partial: bool

    @classmethod
    def read(cls, cut: dict[str, Any], runtime: dict[str, Any]) -> Settings:
        """Raises InputError when either misses a key."""
        try:
            g, d, target, gateway = cut["generate"], cut["dataset"], cut["target"], runtime["gateway"]
            if cut["gateway"]["kind"] != gateway["kind"]:
                raise InputError(f"--slice is for gateway {cut['gateway']['kind']}, --runtime for {gateway['kind']}")
            account = gateway["account_budget_usd"]
            return cls(
                d["name"], gateway["kind"], target["name"], target["openrouter_model"], target["thinking"],
                Sampling(d["max_tokens"] or g["max_tokens"], g["temperature"], g["top_p"], g["seed"]),
                g["repetitions"], d["turns"],
                g["tokens_per_dataset"] if d["tokens"] is None else d["tokens"],
                g["on_length"] == "drop", g["on_changed_request"] == "rebuy",
                cut.get("continued", False),
                runtime["run"], gateway["account"], gateway["base_url"], gateway["api_key_file"], gateway["width"],
                runtime["in_flight"], runtime["slots_per_client"],
                Limits(_micro(runtime["budget_usd"]), None if account is None else _micro(account)),
                runtime["max_attempts"], runtime["max_reject_share"], runtime["timeout_s"], runtime["patience_s"],
                runtime["on_exhausted"] == "build_partial",
            )  # fmt: skip
        except KeyError as error:
            raise InputError(f"--slice or --runtime lacks the key {error}; print them with `eyrie config`") from None

    def identity_model(self, target_fingerprint: str | None) -> str:
        """The vault's name of the model. A model served here carries its weights' fingerprint: a retrained one under
        the same name is another model."""
        if self.gateway == "openrouter":
            return str(self.openrouter_model)
        return f"{self.target}@{target_fingerprint}" if self.gateway == "embedded" else self.target


def _micro(usd: float) -> int:
    return microdollars(Decimal(str(usd)))
