"""providers.json for people: a table on a terminal, one plain line per endpoint elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import IO, Any

from eyrie.gateway.prices import every_price
from eyrie.gateway.providers import Endpoint
from eyrie.gateway.request import MILLION

COLUMNS = ("endpoint", "provider", "precision", "uptime", "context", "max out", "$/M in", "$/M out")
RIGHT = ("uptime", "context", "max out", "$/M in", "$/M out")


def show(value: dict[str, Any], out: IO[str]) -> None:
    """Write the accepted endpoints, then the rejected ones with every reason, then what is known of the model."""
    title = f"{value['model']} through {value['gateway']}" + (f", {value['time']}" if value["time"] else "")
    if out.isatty():
        _table(value, title, out)
    else:
        print(f"{title}:", file=out)
        for cells, accepted in _rows(value):
            tag, provider, precision, uptime, context, longest, prompt, completion, why = cells
            print(
                f"{'accepted' if accepted else 'rejected'} {tag} ({provider}, {precision}): ${prompt}/M in, "
                f"${completion}/M out, uptime {uptime}, context {context}, answers up to {longest}"
                + (f"; {why}" if why else ""),
                file=out,
            )
    print(summary(value), file=out)


def _table(value: dict[str, Any], title: str, out: IO[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", pad_edge=False, collapse_padding=True, box=box.SIMPLE)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in RIGHT else "left", no_wrap=name == "endpoint")
    for cells, accepted in _rows(value):
        table.add_row(*cells[:-1], style="green" if accepted else "dim")
    console = Console(file=out)
    console.print(table)
    for cells, accepted in _rows(value):  # below, where a narrow terminal can wrap them
        if cells[-1]:
            console.print(Text(f"{'accepted' if accepted else 'rejected'} {cells[0]}: {cells[-1]}"))


def summary(value: dict[str, Any]) -> str:
    """One line: how many, and what a run must know of the model."""
    facts = value["model_facts"]
    reasoning = facts.get("reasoning") if isinstance(facts.get("reasoning"), dict) else {}
    told = [
        f"context {facts['context_length']}" if facts.get("context_length") else "",
        {True: "always reasons", False: "reasoning can be switched"}.get(reasoning.get("mandatory"), ""),
        {True: "marked distillable", False: "not marked distillable"}.get(facts.get("distillable"), ""),
        f"retires on {facts['expiration_date']}" if facts.get("expiration_date") else "",
    ]
    counts = f"{value['model']}: {len(value['accepted'])} accepted, {len(value['rejected'])} rejected"
    return "; ".join([counts, *filter(None, told)])


def _rows(value: dict[str, Any]) -> Iterator[tuple[list[str], bool]]:
    for item in value["accepted"]:
        evidence = value["policy"].get("evidence", {}).get(item["tag"])
        yield _cells(item, f"evidence: {evidence}" if evidence else ""), True
    for item in value["rejected"]:
        yield _cells(item, "; ".join(item["reasons"])), False


def _cells(item: dict[str, Any], why: str) -> list[str]:
    endpoint = Endpoint.from_json(item)
    prices = every_price(endpoint.tariff)

    def or_dash(content: Any, suffix: str = "") -> str:
        return "-" if content is None else f"{content}{suffix}"

    return [endpoint.tag, endpoint.provider_name, or_dash(endpoint.quantization), or_dash(endpoint.uptime_1d, "%"),
            str(endpoint.context_length), or_dash(endpoint.max_completion_tokens),
            _span({p.prompt for p in prices}), _span({p.completion for p in prices}), why]  # fmt: skip


def _span(prices: set[Decimal]) -> str:
    """USD per million tokens; `low-high` where hours or prompt lengths differ."""
    low, high = (f"{price * MILLION:.2f}" for price in (min(prices), max(prices)))
    return low if low == high else f"{low}-{high}"
