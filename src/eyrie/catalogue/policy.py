"""Judge endpoints by the policy: every reason against each, and what in the policy it would take to let one in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from eyrie.catalogue.reasons import Finding, uptime_floor
from eyrie.errors import InputError, check_known
from eyrie.gateway.prices import every_price
from eyrie.gateway.providers import UNDECLARED, Endpoint
from eyrie.gateway.request import MILLION, plain
from eyrie.schema_gateway import PARAMETERS, QUANTIZATIONS
from eyrie.vault.money import decimal

OPT_IN = ("priority", "flex")  # variants that a base slug never asks for


@dataclass(frozen=True)
class Policy:
    """`gateway.policy` of the configuration, checked. Prices in USD per million tokens."""

    quantizations: tuple[str, ...] = ()
    allow_tags: tuple[str, ...] = ()
    deny_tags: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)
    min_uptime: float = 0.0
    max_prompt_price: float | None = None
    max_completion_price: float | None = None
    min_context: int = 0
    parameters: tuple[str, ...] = ()
    data_collection: str = "deny"
    distillable: bool = False

    @classmethod
    def read(cls, value: dict[str, Any]) -> Policy:
        """Raises InputError for a quantization or parameter that the catalogue does not know: a typo would exclude
        or admit in silence."""
        names = {f.name for f in fields(cls)}
        policy = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k in names})
        for name in policy.quantizations:
            if name == "unknown":
                raise InputError(
                    "gateway.policy.quantizations: unknown is not allowed as such; give the endpoint's tag a line in "
                    "gateway.policy.evidence that says why its precision is right"
                )
            check_known("gateway.policy.quantizations", name, QUANTIZATIONS, "is no quantization")
        if policy.data_collection not in ("allow", "deny"):
            raise InputError(f"gateway.policy.data_collection={policy.data_collection!r} must be allow or deny")
        for tag, text in policy.evidence.items():
            if not str(text).strip():
                raise InputError(f"gateway.policy.evidence.{tag}: must say why its precision is right")
        both = set(policy.allow_tags) & set(policy.deny_tags)
        if both:
            raise InputError(f"gateway.policy: {', '.join(sorted(both))} in allow_tags and in deny_tags; keep one")
        return policy

    def check_names(self, endpoints: Sequence[Endpoint]) -> None:
        """Raises InputError for a tag that the catalogue does not list (any more) and for a parameter that nobody
        has heard of, with the nearest that exists."""
        known = sorted({e.tag for e in endpoints})
        for key in ("allow_tags", "deny_tags", "evidence"):
            for tag in getattr(self, key):
                check_known(f"gateway.policy.{key}", tag, known, "is no endpoint of this model (any more)")
        heard_of = {*PARAMETERS, *(name for e in endpoints for name in e.supported_parameters)}
        for name in self.parameters:
            check_known("gateway.policy.parameters", name, sorted(heard_of), "is no request parameter")

    def findings(self, e: Endpoint, max_tokens: int = 0) -> list[Finding]:
        """Everything that speaks against endpoint `e`; empty = it may answer.

        `max_tokens`: output tokens of the shortest answers that a dataset asks for.
        """
        found = []
        if e.tag in self.deny_tags:
            found.append(Finding("tag is denied (deny_tags)", f"deny_tags without {e.tag}"))
        if self.allow_tags and e.tag not in self.allow_tags:
            found.append(Finding("tag is not in allow_tags", f"allow_tags + {e.tag}"))
        if e.quantization in UNDECLARED:
            if e.tag not in self.evidence:
                text = "quantization is undeclared and has no evidence line (evidence)"
                found.append(Finding(text, f"evidence.{e.tag}: <why its precision is right>", precision=True))
        elif self.quantizations and e.quantization not in self.quantizations:
            text = f"quantization {e.quantization} is not allowed (quantizations)"
            found.append(Finding(text, f"quantizations + {e.quantization}", precision=True))
        if e.status < 0:
            found.append(Finding(f"status {e.status}: not in service"))
        if e.uptime_1d is not None and e.uptime_1d < self.min_uptime:
            text = f"uptime {e.uptime_1d:.1f}% is below {self.min_uptime:g}% (min_uptime)"
            found.append(Finding(text, f"min_uptime {self.min_uptime:g} -> {uptime_floor(e.uptime_1d):g}"))
        found += self._prices(e)
        if e.context_length < self.min_context:
            text = f"context {e.context_length} is below {self.min_context} (min_context)"
            found.append(Finding(text, f"min_context {self.min_context} -> {e.context_length}"))
        if e.max_prompt_tokens is not None and e.max_prompt_tokens < self.min_context - max_tokens:
            least = e.max_prompt_tokens + max_tokens
            text = f"prompts end at {e.max_prompt_tokens} tokens, {self.min_context - max_tokens} are needed"
            found.append(Finding(f"{text} (min_context)", f"min_context {self.min_context} -> {least}"))
        if e.max_completion_tokens is not None and e.max_completion_tokens < max_tokens:
            text = f"answers end at {e.max_completion_tokens} tokens, {max_tokens} are asked (generate.max_tokens)"
            found.append(Finding(text, f"generate.max_tokens {max_tokens} -> {e.max_completion_tokens}"))
        missing = [name for name in self.parameters if name not in e.supported_parameters]
        if missing:
            names = ", ".join(missing)
            found.append(Finding(f"does not support {names} (parameters)", f"parameters without {names}"))
        return found

    def _prices(self, e: Endpoint) -> Iterable[Finding]:
        """Against the dearest hour and tier, after the discount."""
        prices = every_price(e.tariff)
        for name, limit in (("prompt", self.max_prompt_price), ("completion", self.max_completion_price)):
            price = max(getattr(p, name) for p in prices) * MILLION
            bound = decimal(limit)
            if bound is not None and price > bound:
                key = f"max_{name}_price"
                text = f"{name} price ${plain(price)}/M is above ${plain(bound)}/M ({key})"
                yield Finding(text, f"{key} {plain(bound)} -> {plain(price)}")


def judge(
    policy: Policy, endpoints: Sequence[Endpoint], max_tokens: int = 0
) -> tuple[list[Endpoint], list[tuple[Endpoint, list[Finding]]]]:
    """(accepted, rejected with findings). Raises InputError for names that do not exist."""
    policy.check_names(endpoints)
    judged = {e: policy.findings(e, max_tokens) for e in endpoints}
    for e in endpoints:
        if not judged[e]:
            judged[e] = _siblings(e, policy, judged)
    return [e for e, why in judged.items() if not why], [(e, why) for e, why in judged.items() if why]


def _siblings(e: Endpoint, policy: Policy, judged: dict[Endpoint, list[Finding]]) -> list[Finding]:
    """Against a base slug that would let a rejected variant in: asking for `slug` asks for every `slug/variant`.

    A variant of a declared precision that is not allowed stays out all the same: requests carry the quantizations.
    """
    if "/" in e.tag:
        return []
    for other, why in judged.items():
        base, _, variant = other.tag.partition("/")
        if base != e.tag or not variant or variant.split("/")[0] in OPT_IN or not why:
            continue
        if policy.quantizations and other.quantization not in (*UNDECLARED, *policy.quantizations):
            continue
        return [Finding(f"asking for {e.tag} would also ask for {other.tag}, which is rejected: {why[0].text}")]
    return []
