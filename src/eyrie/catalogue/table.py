"""providers.json as a table for people."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

MILLION = Decimal(1_000_000)


def show(value: dict[str, Any], console: Console) -> None:
    """Print the accepted endpoints, then the rejected ones with every reason."""
    table = Table(title=f"{value['model']} through {value['gateway']}, {value['time']}", title_justify="left")
    for name, justify in (("endpoint", "left"), ("provider", "left"), ("precision", "left"), ("uptime", "right"),
                          ("context", "right"), ("max out", "right"), ("$/M in", "right"), ("$/M out", "right"),
                          ("", "left")):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for item in value["accepted"]:
        table.add_row(*_cells(item), "accepted", style="green")
    for item in value["rejected"]:
        table.add_row(*_cells(item), "; ".join(item["reasons"]), style="dim")
    console.print(table)
    facts = {k: v for k, v in value["model_facts"].items() if v is not None}
    console.print(f"{len(value['accepted'])} accepted, {len(value['rejected'])} rejected; model: {facts}")


def _cells(item: dict[str, Any]) -> list[str]:
    def or_dash(content: Any, suffix: str = "") -> str:
        return "-" if content is None else f"{content}{suffix}"

    prices = [f"{Decimal(item[name]) * MILLION:.2f}" for name in ("prompt_price", "completion_price")]
    return [item["tag"], item["provider_name"], or_dash(item["quantization"]), or_dash(item["uptime_1d"], "%"),
            str(item["context_length"]), or_dash(item["max_completion_tokens"]), *prices]  # fmt: skip
