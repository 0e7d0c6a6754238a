"""Facts into the page and the card. Everything from outside is escaped: names and reasons may hold anything."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eyrie.files import canonical_json
from eyrie.report import plots
from eyrie.report.facts import MILLION, Facts


def page(facts: Facts) -> str:
    """The self-contained HTML page: no script, no address, figures inline."""
    drawn = {
        "per_position": plots.per_position(facts),
        "acceptance": plots.acceptance_curve(facts),
        "loss": plots.loss(facts),
        "tokens": plots.tokens(facts),
        "lengths": plots.lengths(facts),
    }
    inline = {name: Markup(svg) for name, svg in drawn.items()}  # matplotlib escapes the text in it
    return _render("page.html.j2", facts, autoescape=True, plots=inline)


def card(facts: Facts) -> str:
    """The model card in Markdown, for the drafter's folder."""
    return _render("card.md.j2", facts, autoescape=False)


def _render(template: str, facts: Facts, *, autoescape: bool, **more: Any) -> str:
    environment = Environment(
        loader=PackageLoader("eyrie.report", "."), autoescape=autoescape, undefined=StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"md": markdown, "code": code}
    source = facts.slice["target"]["source"]
    return environment.get_template(template).render(
        facts=facts,
        chain=str(facts.evaluation["chain_length"]),
        chains=sorted(facts.evaluation["sets"]["holdout"]["slot_mean"], key=int),
        answer_tokens=sum(int(d.answer_tokens.sum()) for d in facts.datasets),
        steps=facts.steps[-1]["step"] if facts.steps else 0,
        trained=facts.steps[-1].get("tokens", 0) if facts.steps else 0,
        hub=source.removeprefix("hub:") if source.startswith("hub:") else None,
        settings=canonical_json(facts.slice),
        figure=figure, count=count, money=money, price=price, percent=percent, size=size,
        **more,
    )  # fmt: skip


def figure(value: float | None) -> str:
    """An acceptance length; a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"


def count(value: Any) -> str:
    """A whole number with thin thousands separators."""
    return f"{int(value):,}".replace(",", "\u202f")


def money(value: Any) -> str:
    """USD to the cent, or to the first figure of an amount below one."""
    amount = Decimal(str(value))
    return f"{amount:.2f}" if amount == 0 or amount >= Decimal("0.01") else f"{amount:.1g}"


def price(per_token: str) -> str:
    """USD per million tokens."""
    return f"{Decimal(per_token) * MILLION:.2f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}\u202f%"


def size(count_: int) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count_ < 1000:
            return f"{count_:.0f}\u202f{unit}" if unit == "B" else f"{count_:.1f}\u202f{unit}"
        count_ = count_ / 1000
    return f"{count_:.1f}\u202fTB"


def markdown(text: Any) -> str:
    """Text inside a Markdown table cell: no markup, no HTML, one line."""
    one_line = re.sub(r"\s+", " ", str(text))
    return re.sub(r"([\\`*_\[\]|<>&~$])", lambda m: f"&#{ord(m[1])};" if m[1] in "<>&|" else "\\" + m[1], one_line)


def code(text: Any) -> str:
    """Text inside a Markdown code span."""
    return re.sub(r"[`\s]+", " ", str(text))
