"""The page's figures as inline SVG: the same facts give the same bytes, and text takes the page's own colour.

Colours are Okabe and Ito's, which colour-blind readers tell apart, in shades that stand on light and on dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from eyrie.report.facts import Facts  # noqa: E402

COLOURS = ("#0e8ac8", "#e07b00", "#00a078", "#c9509a", "#b8a000", "#7a7fd0", "#c84a2e", "#5aa9e0")
INK = "#0a0b0c"  # replaced by the page's text colour
STYLE = {
    "svg.hashsalt": "eyrie",
    "svg.fonttype": "none",  # text stays text: small, and set in the page's font
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
    "text.parse_math": False,  # a name may hold a dollar sign
}


def draw(paint: Callable[[Axes], None], label: str, *, width: float = 5.2, height: float = 3.0) -> str:
    """`paint` on fresh axes of `width` x `height` inches, as an `<svg>` element named `label` for screen readers."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
        try:
            paint(axes)
            out = io.StringIO()
            nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
            figure.savefig(out, format="svg", transparent=True, metadata=nothing)
        finally:
            plt.close(figure)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML needs none, and the page shall name no address at all
    svg = re.sub(r'(<svg) width="[^"]*" height="[^"]*"', r"\1", svg)
    svg = re.sub(r"font-family: [^;\"]*;", "font-family: inherit;", svg)
    svg = svg.replace(INK, "currentColor").replace("xlink:href", "href")
    return svg.replace("<svg", f'<svg role="img" aria-label="{_attribute(label)}"', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def loss(facts: Facts) -> str:
    """Training loss, whole and per draft step, smoothed."""

    def paint(axes: Axes) -> None:
        steps = [record["step"] for record in facts.steps]
        window = max(1, len(steps) // 40)
        axes.plot(steps, smooth([record["loss"] for record in facts.steps], window), label="all steps", linewidth=2)
        depth = max((len(record["loss_step"]) for record in facts.steps), default=0)
        for k in range(depth):
            axes.plot(
                steps, smooth([r["loss_step"][k] for r in facts.steps], window), label=f"draft {k + 1}", linewidth=1
            )
        axes.set(xlabel="optimizer step", ylabel=f"loss, mean of {window} steps")
        axes.legend(ncols=2)

    return draw(paint, "training loss")


def smooth(values: Sequence[float | None], window: int) -> np.ndarray:
    """Running mean over the last `window` values; missing ones are left out."""
    clean = np.array([np.nan if value is None else value for value in values], dtype=float)
    return np.array(
        [
            np.nanmean(part) if np.isfinite(part := clean[max(0, i + 1 - window) : i + 1]).any() else np.nan
            for i in range(len(clean))
        ]
    )


def acceptance_curve(facts: Facts) -> str:
    """Slot mean on the hold-out while training."""

    def paint(axes: Axes) -> None:
        steps = [look["step"] for look in facts.looks]
        axes.plot(steps, [look["eval"].get("slot_mean") for look in facts.looks], marker="o", linewidth=2)
        axes.set(xlabel="optimizer step", ylabel="slot mean on the hold-out (tokens)")

    return draw(paint, "acceptance on the hold-out while training")


def per_position(facts: Facts) -> str:
    """Share of passes whose drafts were right up to each position, per set."""

    def paint(axes: Axes) -> None:
        chain = str(facts.evaluation["chain_length"])
        sets = {name: entry["decode"][chain] for name, entry in facts.evaluation["sets"].items() if entry["decode"]}
        width = 0.8 / max(1, len(sets))
        for number, (name, decode) in enumerate(sets.items()):
            shares = [100 * share for share in decode["per_position"]]
            places = np.arange(len(shares)) + (number - (len(sets) - 1) / 2) * width
            bars = axes.bar(places, shares, width * 0.92, label=plain(name))
            axes.bar_label(bars, fmt="%.0f", fontsize=8)
        axes.set_xticks(range(int(chain)), [f"draft {k + 1}" for k in range(int(chain))])
        axes.set(ylabel="passes with all drafts right so far (%)", ylim=(0, 100))
        axes.legend()

    return draw(paint, "acceptance per draft position")


def lengths(facts: Facts) -> str:
    """Distribution of generated tokens per row, per dataset."""

    def paint(axes: Axes) -> None:
        longest = max((int(d.answer_tokens.max()) for d in facts.datasets if len(d.answer_tokens)), default=1)
        edges = np.linspace(0, longest + 1, min(30, longest + 1) + 1)
        for dataset in facts.datasets:
            axes.hist(dataset.answer_tokens, edges, histtype="step", linewidth=1.8, label=plain(dataset.name))
        axes.set(xlabel="generated tokens in a row", ylabel="rows")
        axes.figure.legend(loc="outside upper center", ncols=2)

    return draw(paint, "answer lengths per dataset")


def tokens(facts: Facts) -> str:
    """Prompt and generated tokens per dataset."""

    def paint(axes: Axes) -> None:
        names = [plain(d.name) for d in facts.datasets]
        answers = np.array([int(d.answer_tokens.sum()) for d in facts.datasets])
        whole = np.array([int(d.row_tokens.sum()) for d in facts.datasets])
        places = np.arange(len(names))
        axes.barh(places, answers, label="generated by the target")
        axes.barh(places, whole - answers, left=answers, label="prompt", alpha=0.45)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set(xlabel="tokens")
        axes.grid(False, axis="y")
        axes.figure.legend(loc="outside upper center", ncols=2)  # bars reach everywhere

    return draw(paint, "tokens per dataset", height=1.5 + 0.35 * len(facts.datasets))


def plain(name: str) -> str:
    """A name for a legend: short enough to leave room for the plot, and not hidden as one that begins with `_`."""
    short = name if len(name) <= 24 else name[:23] + "…"
    return short if not short.startswith("_") else f" {short}"
