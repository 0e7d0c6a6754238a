"""The final account of a generate job: what this process did, and what the dataset has cost since it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median

from eyrie.generate.output import Counts
from eyrie.generate.progress import clock
from eyrie.generate.tally import Part, Tally
from eyrie.vault.account import Books, Sum

MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class Session:
    """What this process did. `seconds` of wall time; `latencies` in seconds from sent to stored, by provider."""

    seconds: float
    tally: Tally
    latencies: Mapping[str, Sequence[float]]
    paid: bool


def lines(name: str, session: Session | None, counts: Counts, books: Books) -> list[str]:
    """The account as plain lines: first of this process (None: it sent nothing), then of the dataset."""
    first = (
        [f"{name}: this job sent nothing; the vault had every answer"] if session is None else _session(name, session)
    )
    return [*first, *_dataset(name, counts, books)]


def _session(name: str, session: Session) -> list[str]:
    tally, whole = session.tally, session.tally.total()
    seconds = max(session.seconds, 1e-9)
    every = [value for values in session.latencies.values() for value in values]
    found = [
        f"{name}: this job, {clock(session.seconds)}",
        f"  answers     {whole.answers:,} with {whole.tokens:,} output tokens"
        f" ({whole.reasoning_tokens:,} of reasoning) for {whole.prompt_tokens:,} prompt tokens; "
        f"{tally.shared:,} shared with another row, {tally.rejected:,} rows rejected",
        f"  cost        {_dollars(whole.cost)}, {_per_million(whole)} per M output tokens, waste included"
        if session.paid
        else "  cost        $0 (no endpoint that costs anything)",
        f"  speed       {whole.tokens / seconds:,.0f} output tokens/s, {whole.answers / seconds:,.2f} answers/s",
        f"  latency     {_latency(every)}",
        f"  errors      {_counted(tally.faults)}",
    ]
    if session.tally.endpoints:
        found += _table(tally.endpoints, session)
    return found


def _table(endpoints: Mapping[str, Part], session: Session) -> list[str]:
    """One line per endpoint, the one with most answers first."""
    head = ("endpoint", "answers", "failed", "output tokens", "cost", "$/M", "median s", "p95 s")
    body = []
    for provider, part in sorted(endpoints.items(), key=lambda item: (-item[1].answers, item[0])):
        taken = session.latencies.get(provider or "unnamed", ())
        money = (_dollars(part.cost), _per_million(part)) if session.paid else ("$0", "-")
        times = (f"{median(taken):.2f}", f"{p95(taken):.2f}") if taken else ("-", "-")
        name = provider or ("(no answer)" if not part.answers else "(unnamed)")
        body.append((name, f"{part.answers:,}", f"{part.failed:,}", f"{part.tokens:,}", *money, *times))
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    return [
        "  "
        + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in (head, *body)
    ]


def _dataset(name: str, counts: Counts, books: Books) -> list[str]:
    answers = Decimal(counts.cost) / MILLION
    each = f", {_dollars(answers / counts.completion_tokens * MILLION)} per M" if counts.completion_tokens else ""
    reasons = {reason: f"{part.attempts:,} {_dollars(part.dollars)}" for reason, part in books.waste_by_reason.items()}
    return [
        f"{name}: all jobs",
        f"  answers     {counts.turns:,} in {counts.answered:,} conversations, {counts.completion_tokens:,} output "
        f"tokens, {_dollars(answers)}{each}; {counts.shared:,} shared"
        + (f", {counts.changed:,} with a changed request" if counts.changed else ""),
        f"  rejected    {_counted(counts.rejected)}",
        f"  waste       {_sum(books.waste)}"
        + (f" ({', '.join(f'{reason} {text}' for reason, text in sorted(reasons.items()))})" if reasons else ""),
        f"  open bills  {_sum(books.unknown, 'at most ')}",
        f"  duplicates  {books.duplicates:,} (requests paid for again although the answer was there)",
        f"  losses      {books.losses:,} (answers paid for that are not in the vault)",
    ]


def p95(values: Sequence[float]) -> float:
    """The smallest value that at least 95 % of `values` do not exceed."""
    return sorted(values)[-(-len(values) * 95 // 100) - 1]


def _latency(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"median {median(values):.2f} s, p95 {p95(values):.2f} s, longest {max(values):.2f} s"


def _counted(counts: Mapping[str, int]) -> str:
    each = ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return f"{sum(counts.values()):,}" + (f" ({each})" if each else "")


def _sum(value: Sum, most: str = "") -> str:
    return f"{value.attempts:,} attempts, {most if value.attempts else ''}{_dollars(value.dollars)}"


def _dollars(value: Decimal) -> str:
    return f"${value:.2f}" if value == 0 or value >= 1 else f"${value:.6f}".rstrip("0").rstrip(".")


def _per_million(part: Part) -> str:
    return _dollars(part.cost / part.tokens * MILLION) if part.tokens else "-"
