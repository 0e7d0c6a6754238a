"""Why an endpoint is rejected, and the smallest changes of the policy that would let one in."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from eyrie.errors import ExitCode, EyrieError
from eyrie.gateway.providers import Endpoint

SHOWN = 3  # changes that a message proposes


@dataclass(frozen=True)
class Finding:
    """One reason against an endpoint; `change`: what in the configuration it takes to lift it, None = nothing does."""

    text: str
    change: str | None = None
    precision: bool = False  # lifting it would change what the answers are, not only what they cost


Rejected = Sequence[tuple[Endpoint, Sequence[Finding]]]


def uptime_floor(uptime: float) -> float:
    """The highest tenth of a percent that `uptime` reaches."""
    return math.floor(uptime * 10) / 10


def relaxations(rejected: Rejected) -> list[str]:
    """Each smallest set of changes with the endpoints that it lets in, the fewest changes first.

    Sets that touch precision come last, whatever their size: a cheaper answer of another model is no answer.
    """
    lets_in: dict[tuple[str, ...], list[str]] = defaultdict(list)
    touches: dict[tuple[str, ...], bool] = {}
    for endpoint, findings in rejected:
        changes = tuple(f.change for f in findings if f.change is not None)
        if len(changes) == len(findings):
            lets_in[changes].append(endpoint.tag)
            touches[changes] = any(f.precision for f in findings)
    order = sorted(lets_in, key=lambda c: (touches[c], len(c), -len(lets_in[c]), c))
    return [f"{' and '.join(changes)} would let in {', '.join(sorted(lets_in[changes]))}" for changes in order]


def demand_some(model: str, accepted: Sequence[Endpoint], rejected: Rejected) -> None:
    """Raises EyrieError(POLICY_EMPTY) when nothing is accepted, saying what would have to change."""
    if accepted:
        return
    if not rejected:
        raise EyrieError(f"{model}: the catalogue lists no endpoint at all", code=ExitCode.POLICY_EMPTY)
    counts = Counter(finding.text for _, findings in rejected for finding in findings)
    common = "; ".join(f"{n}x {reason}" for reason, n in counts.most_common(5))
    found = relaxations(rejected)
    advice = "; or ".join(found[:SHOWN]) if found else "no change of gateway.policy would help: wait, or change target"
    raise EyrieError(
        f"{model}: none of {len(rejected)} endpoints passes gateway.policy ({common}). The smallest changes: {advice}. "
        "Nothing is loosened by itself",
        code=ExitCode.POLICY_EMPTY,
    )
