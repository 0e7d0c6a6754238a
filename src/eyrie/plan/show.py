"""A plan as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal

from eyrie.plan.estimate import Demand, total
from eyrie.plan.making import Plan
from eyrie.plan.rates import Case, Rate

HEAD = ("dataset", "wanted", "in hand", "missing", "cheapest", "expected", "= prompts", "+ answers", "worst")


def lines(plan: Plan) -> Iterator[str]:
    """What is bought, what it costs, whether it fits, and what would."""
    yield f"plan of {plan.run}: answers of {plan.model}, in output tokens and dollars"
    rows = [HEAD, *(_row(demand, plan) for demand in plan.demands), _sum(plan)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    for row in rows:
        yield "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
    yield f"prices: {plan.prices}"
    for basis, names in _grouped(plan.demands).items():
        yield f"lengths: {basis}" + ("" if len(names) == len(plan.demands) else f" ({', '.join(names)})")
    if plan.fit:
        yield f"tokens_per_dataset=fit: {plan.fit}"
    yield from (f"note: {note}" for note in [*plan.notes, *_notes(plan)])
    yield _verdict(plan)
    yield _equal(plan)


def _row(demand: Demand, plan: Plan) -> tuple[str, ...]:
    costs = {case: demand.cost(case) for case in Case}
    expected = costs[Case.expected]
    return (
        demand.name, _tokens(demand.wanted), _tokens(demand.held), _tokens(demand.missing),
        _total(costs[Case.cheapest]), _total(expected), _prompts(expected, plan),
        _dollars(expected and expected.completion), _total(costs[Case.worst]),
    )  # fmt: skip


def _sum(plan: Plan) -> tuple[str, ...]:
    def tokens(name: str) -> str:
        found = [getattr(demand, name) for demand in plan.demands]
        return _tokens(None if None in found else sum(found))

    parts = [demand.cost(Case.expected) for demand in plan.demands]
    known = [part for part in parts if part is not None]
    whole = Rate(sum((p.completion for p in known), Decimal(0)), sum((p.prompt for p in known), Decimal(0)))
    expected = whole if len(known) == len(parts) else None
    return (
        "sum", tokens("wanted"), tokens("held"), tokens("missing"), _dollars(total(plan.demands, Case.cheapest)),
        _total(expected), _prompts(expected, plan), _dollars(expected and expected.completion),
        _dollars(total(plan.demands, Case.worst)),
    )  # fmt: skip


def _grouped(demands: list[Demand]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for demand in demands:
        found.setdefault(demand.lengths.basis, []).append(demand.name)
    return found


def _notes(plan: Plan) -> Iterator[str]:
    for demand in plan.demands:
        if demand.short:
            yield (
                f"{demand.name}: its rows are expected to give {_tokens(demand.capacity)} tokens, less than wanted; "
                f"raise datasets.{demand.name}.rows or lower its tokens"
            )
        cost = demand.cost(Case.expected)
        if demand.allowed is not None and cost is not None and cost.total > demand.allowed:
            yield (
                f"{demand.name}: datasets.{demand.name}.budget_usd leaves {_dollars(demand.allowed)}, what is missing "
                f"is expected to cost {_dollars(cost.total)}"
            )
        if demand.changed:
            yield (
                f"{demand.name}: {demand.changed:,} conversations with a changed request are bought again "
                "(generate.on_changed_request=rebuy)"
            )


def _verdict(plan: Plan) -> str:
    spent = f", {_dollars(plan.spent)} of it gone" if plan.spent else ""
    budget = f"budget {_dollars(plan.budget)}{spent}, {_dollars(plan.left)} left"
    expected, worst = total(plan.demands, Case.expected), total(plan.demands, Case.worst)
    if expected is None or worst is None:
        return f"{budget}: whether that is enough cannot be told yet"
    told = f"{budget}: {_dollars(expected)} expected" + ("" if plan.prompts_counted else " before prompts")
    if expected > plan.left:
        return f"{told}, it does NOT fit: the run would stop at its budget"
    if worst == expected:
        return f"{told}, it fits"
    if worst > plan.left:
        return f"{told}, it fits; at the worst prices ({_dollars(worst)}) it would not"
    return f"{told}, it fits even at the worst prices ({_dollars(worst)})"


def _equal(plan: Plan) -> str:
    found = {case: plan.equal(case) for case in Case}
    shared = [d for d in plan.demands if not d.own] or plan.demands
    head = f"largest equal token budget that fits ({len(shared)} datasets): "
    if any(tokens is None for tokens in found.values()):
        return head + "not known yet"
    if len(set(found.values())) == 1:
        return head + f"{found[Case.expected]:,}" + ("" if plan.prompts_counted else ", before prompts")
    return head + ", ".join(f"{tokens:,} at the {case.value} prices" for case, tokens in found.items())


def _tokens(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e6:.2f}M" if count >= 1_000_000 else f"{count:,}"


def _prompts(rate: Rate | None, plan: Plan) -> str:
    return _dollars(rate.prompt if rate is not None and plan.prompts_counted else None)


def _total(rate: Rate | None) -> str:
    return _dollars(rate and rate.total)


def _dollars(value: Decimal | None) -> str:
    """Rounded up to a cent: a plan never shows less than it costs."""
    return "?" if value is None else f"${value.quantize(Decimal('0.01'), ROUND_CEILING):,}"
