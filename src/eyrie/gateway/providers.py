"""`providers.json`: the endpoints that may answer, with the prices that reservations are made at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from eyrie.errors import InputError
from eyrie.files import read_json
from eyrie.gateway.prices import Pricing

FORMAT = "eyrie-providers-1"
UNDECLARED = (None, "unknown")  # quantizations that say nothing


@dataclass(frozen=True)
class Endpoint:
    """One provider's offer of the target. Prices in USD per token, as decimal strings, the highest that can apply."""

    tag: str
    provider_name: str
    quantization: str | None
    status: int
    uptime_1d: float | None  # percent; None = too little data
    context_length: int  # tokens, input and output together
    max_completion_tokens: int | None
    prompt_price: str
    completion_price: str
    request_price: str = "0"  # USD per request
    supported_parameters: tuple[str, ...] = ()
    max_prompt_tokens: int | None = None
    uptime_30m: float | None = None
    pricing: dict[str, Any] = field(default_factory=dict, hash=False)  # as `prices.kept` leaves it

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "supported_parameters": sorted(self.supported_parameters)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Endpoint:
        known = {f.name for f in fields(cls)}
        kept = {k: v for k, v in value.items() if k in known}
        return cls(**{**kept, "supported_parameters": tuple(kept.get("supported_parameters", ()))})

    @property
    def tariff(self) -> Pricing:
        """The endpoint's pricing with its conditions; without any, its highest prices are its only ones."""
        return self.pricing or {
            "prompt": self.prompt_price, "completion": self.completion_price, "request": self.request_price,
        }  # fmt: skip

    @property
    def is_free(self) -> bool:
        return all(Decimal(p) == 0 for p in (self.prompt_price, self.completion_price, self.request_price))


@dataclass(frozen=True)
class ProviderList:
    """What a generate job needs of providers.json."""

    gateway: str
    model: str
    model_facts: dict[str, Any]
    accepted: tuple[Endpoint, ...]
    policy: dict[str, Any] = field(default_factory=dict)
    time: str | None = None  # when the catalogue was read

    @classmethod
    def read(cls, path: str | Path) -> ProviderList:
        """Raises InputError when the file is missing, of another format or accepts nothing."""
        value = read_json(path, hint="run `snakemake providers`")
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise InputError(f"{path}: not a provider list ({FORMAT}); delete it and run `snakemake providers`")
        if not value["accepted"]:
            raise InputError(f"{path}: no accepted endpoint; delete it and run `snakemake providers`")
        accepted = tuple(Endpoint.from_json(item) for item in value["accepted"])
        return cls(value["gateway"], value["model"], value["model_facts"], accepted, value["policy"], value.get("time"))

    def free_only(self) -> ProviderList:
        """The same list with only the endpoints that cost nothing."""
        return replace(self, accepted=tuple(e for e in self.accepted if e.is_free))

    def able(self, max_tokens: int) -> ProviderList:
        """The same list with only the endpoints that can give answers of `max_tokens`: the others would drop out of
        routing without a word."""
        return replace(
            self, accepted=tuple(e for e in self.accepted if (e.max_completion_tokens or max_tokens) >= max_tokens)
        )

    def highest(self, price: str) -> Decimal:
        """The highest `prompt_price`, `completion_price` or `request_price` (USD) among the accepted endpoints."""
        return max(Decimal(getattr(e, price)) for e in self.accepted)

    @property
    def names(self) -> frozenset[str]:
        """Display names that a reply's `provider` may carry."""
        return frozenset(e.provider_name for e in self.accepted)

    @property
    def served_models(self) -> frozenset[str]:
        """Names that a reply's `model` may carry: the id asked for and its dated permanent form."""
        return frozenset(m for m in (self.model, self.model_facts.get("canonical_slug")) if m)
