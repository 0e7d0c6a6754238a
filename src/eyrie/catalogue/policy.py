"""Judge endpoints by the policy: every reason against each, and nothing loosened when none is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from eyrie.errors import ExitCode, EyrieError, InputError
from eyrie.gateway.providers import Endpoint

MILLION = Decimal(1_000_000)
# The catalogue's enum. A filter value stands for its microscaling kinds as well, so fp8 lets mxfp8 in.
QUANTIZATIONS = ("int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown")
UNDECLARED = (None, "unknown")


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
        """Raises InputError for a quantization that the catalogue does not know: a typo would exclude or admit in
        silence."""
        names = {f.name for f in fields(cls)}
        policy = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k in names})
        for name in policy.quantizations:
            if name not in QUANTIZATIONS:
                raise InputError(
                    f"gateway.policy.quantizations: {name!r} is none; valid are {', '.join(QUANTIZATIONS)}"
                )
        if "unknown" in policy.quantizations:
            raise InputError(
                "gateway.policy.quantizations: unknown is not allowed as such; give the endpoint's tag a line in "
                "gateway.policy.evidence that says why its precision is right"
            )
        if policy.data_collection not in ("allow", "deny"):
            raise InputError(f"gateway.policy.data_collection={policy.data_collection!r} must be allow or deny")
        for tag, text in policy.evidence.items():
            if not str(text).strip():
                raise InputError(f"gateway.policy.evidence.{tag}: must say why its precision is right")
        return policy

    def check_tags(self, endpoints: Sequence[Endpoint]) -> None:
        """Raises InputError for a tag that the catalogue does not list (any more)."""
        known = {e.tag for e in endpoints}
        for key in ("allow_tags", "deny_tags", "evidence"):
            for tag in getattr(self, key):
                if tag not in known:
                    raise InputError(f"gateway.policy.{key}: no endpoint {tag}; listed are {', '.join(sorted(known))}")

    def reasons(self, endpoint: Endpoint, max_tokens: int = 0) -> list[str]:
        """Everything that speaks against `endpoint`; empty = it may answer. `max_tokens`: output tokens asked for."""
        found = []
        e = endpoint
        if e.tag in self.deny_tags:
            found.append("tag is denied (deny_tags)")
        if self.allow_tags and e.tag not in self.allow_tags:
            found.append("tag is not in allow_tags")
        if e.quantization in UNDECLARED:
            if e.tag not in self.evidence:
                found.append("quantization is undeclared and has no evidence line (evidence)")
        elif self.quantizations and e.quantization not in self.quantizations:
            found.append(f"quantization {e.quantization} is not allowed (quantizations)")
        if e.status < 0:
            found.append(f"status {e.status}: not in service")
        if e.uptime_1d is not None and e.uptime_1d < self.min_uptime:
            found.append(f"uptime {e.uptime_1d:.1f}% is below {self.min_uptime:g}% (min_uptime)")
        for name, limit in (("prompt", self.max_prompt_price), ("completion", self.max_completion_price)):
            price = Decimal(getattr(e, f"{name}_price")) * MILLION
            if limit is not None and price > Decimal(str(limit)):
                found.append(f"{name} price ${price:f}/M is above ${limit:g}/M (max_{name}_price)")
        if e.context_length < self.min_context:
            found.append(f"context {e.context_length} is below {self.min_context} (min_context)")
        if e.max_completion_tokens is not None and e.max_completion_tokens < max_tokens:
            found.append(f"answers end at {e.max_completion_tokens} tokens, {max_tokens} are asked (max_tokens)")
        missing = [name for name in self.parameters if name not in e.supported_parameters]
        if missing:
            found.append(f"does not support {', '.join(missing)} (parameters)")
        return found


def judge(
    policy: Policy, endpoints: Sequence[Endpoint], max_tokens: int = 0
) -> tuple[list[Endpoint], list[tuple[Endpoint, list[str]]]]:
    """(accepted, rejected with reasons). Raises InputError for tags that do not exist."""
    policy.check_tags(endpoints)
    judged = [(e, policy.reasons(e, max_tokens)) for e in endpoints]
    return [e for e, why in judged if not why], [(e, why) for e, why in judged if why]


def demand_some(model: str, accepted: Sequence[Endpoint], rejected: Sequence[tuple[Endpoint, list[str]]]) -> None:
    """Raises EyrieError(POLICY_EMPTY) when nothing is accepted, saying what would have to change."""
    if accepted:
        return
    if not rejected:
        raise EyrieError(f"{model}: the catalogue lists no endpoint at all", code=ExitCode.POLICY_EMPTY)
    counts = Counter(reason for _, reasons in rejected for reason in reasons)
    nearest, reasons = min(rejected, key=lambda item: (len(item[1]), item[0].tag))
    common = "; ".join(f"{n}x {reason}" for reason, n in counts.most_common(5))
    raise EyrieError(
        f"{model}: none of {len(rejected)} endpoints passes gateway.policy ({common}). Nearest is {nearest.tag}, "
        f"which would pass without: {' and '.join(reasons)}. Change that in gateway.policy, or wait",
        code=ExitCode.POLICY_EMPTY,
    )
