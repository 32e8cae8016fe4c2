"""The curves of one run as small SVG strings that stand inside a page and follow its light or dark colours."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Steps = list[dict[str, Any]]

# Stand-ins that matplotlib draws with, and the page's colours that take their place. Forget is orange and retain blue
# in every plot: the two hues of the Okabe-Ito palette that stay furthest apart for all kinds of colour vision.
PAPER_COLOURS = {
    "#d55e01": "var(--forget, #d55e00)",
    "#0072b3": "var(--retain, #0072b2)",
    "#009e74": "var(--both, #009e73)",
    "#767677": "var(--muted, #767676)",
    "#dadadb": "var(--grid, #dadada)",
}
FORGET, RETAIN, BOTH, MUTED, GRID = PAPER_COLOURS
WIDTH_IN, HEIGHT_IN = 4.6, 2.5
MOST_BARS = 400
_COORDINATE = re.compile(r"\d+\.\d{3,}")


@dataclass(frozen=True)
class Series:
    """One line of a plot: a key of metrics.jsonl, its name for a reader, colour and dash pattern."""

    key: str
    label: str
    colour: str
    dash: str = "-"


@dataclass(frozen=True)
class Plot:
    """One plot. `text` says what is drawn, for people who see it and as the description for those who do not."""

    name: str
    title: str
    text: str
    series: tuple[Series, ...]
    signed: bool = False
    log_when_wide: bool = False


PLOTS = (
    Plot(
        "losses",
        "Loss per answer token",
        "Cross-entropy of the forget and retain batches, in nats per token. Forgetting raises the forget curve.",
        (Series("nll_forget", "forget", FORGET), Series("nll_retain", "retain", RETAIN, "--")),
    ),
    Plot(
        "norms",
        "Gradient norms",
        "Global L2 norms of the two objectives' own gradients and of their combination.",
        (
            Series("norm_forget", "forget", FORGET),
            Series("norm_retain", "retain", RETAIN, "--"),
            Series("norm", "combined", BOTH, ":"),
        ),
        log_when_wide=True,
    ),
    Plot(
        "cosine",
        "Cosine between the gradients",
        "Cosine of the forget and retain gradients. Below 0 the two objectives pull against each other.",
        (Series("cosine", "cosine", BOTH),),
        signed=True,
    ),
    Plot(
        "weights",
        "Weights of the two gradients",
        "What the combination rule multiplies the forget and retain gradients with.",
        (Series("weight_forget", "forget", FORGET), Series("weight_retain", "retain", RETAIN, "--")),
        log_when_wide=True,
    ),
    Plot(
        "lr",
        "Learning rate",
        "The learning rate of each step. Dots mark the steps at which AutoLR probed the retain loss.",
        (Series("lr", "learning rate", BOTH),),
        log_when_wide=True,
    ),
)


def read_steps(path: Path) -> Steps:
    """The step lines of metrics.jsonl by step; of a step that a resumed run repeated, the last one.

    A line that is not whole JSON is what a killed run leaves, and is passed over.
    """
    steps: dict[int, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                steps[int(entry["step"])] = entry
            except (ValueError, TypeError, KeyError):
                continue
    return [steps[step] for step in sorted(steps)]


def curves(steps: Steps) -> list[tuple[Plot, str]]:
    """Each plot that has at least one number to show, with its SVG."""
    return [(plot, svg(plot, steps)) for plot in PLOTS if any(_values(steps, line.key)[0] for line in plot.series)]


def _values(steps: Steps, key: str) -> tuple[list[int], list[float]]:
    """(steps, values) where there is a number."""
    points = [(entry["step"], entry[key]) for entry in steps if isinstance(entry.get(key), (int, float))]
    return [step for step, _ in points], [value for _, value in points]


def svg(plot: Plot, steps: Steps) -> str:
    """Draw one plot. Lines differ in dash pattern as well as in colour."""
    return render(plot.name, plot.title, plot.text, lambda axes: _draw(axes, plot, steps))


def sorted_losses(name: str, title: str, text: str, losses: Sequence[float], worst: int) -> str:
    """What each example of a set lost, the largest first, as bars around 0; the first `worst` stand out."""
    ordered = sorted(losses, reverse=True)

    def draw(axes: Axes) -> None:
        # More bars than the plot has pixels would only make the page heavy.
        n = len(ordered)
        picked = [k * n // min(n, MOST_BARS) for k in range(min(n, MOST_BARS))]
        edges = [*picked, n]
        border = sum(k < worst for k in picked)
        values = [ordered[k] for k in picked]
        axes.stairs(values[:border], edges[: border + 1], fill=True, color=FORGET, label="worst decile")
        if values[border:]:
            axes.stairs(values[border:], edges[border:], fill=True, color=MUTED, label="others")
        axes.axhline(0, color=MUTED, linewidth=0.8)
        # Never so narrow that noise looks like damage.
        axes.set_ylim(min(0, 1.05 * ordered[-1]), max(0.1, 1.05 * ordered[0]))
        axes.set_xlim(0, n)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _finish(axes, "examples, the largest loss first")

    return render(name, title, text, draw)


def render(name: str, title: str, text: str, draw: Callable[[Axes], None]) -> str:
    """An SVG in the style of the page, with title and description for those who do not see it."""
    import io

    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.unicode_minus": False,
        "text.color": MUTED,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": GRID,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.formatter.use_mathtext": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), name, title, text)


def _draw(axes: Axes, plot: Plot, steps: Steps) -> None:
    drawn = []
    for line in plot.series:
        xs, ys = _values(steps, line.key)
        if not xs:
            continue
        marker = "o" if len(xs) == 1 else ""
        axes.plot(xs, ys, line.dash, color=line.colour, linewidth=1.6, marker=marker, markersize=4, label=line.label)
        drawn += ys
    if plot.name == "lr":
        probed = [entry for entry in steps if entry.get("probe")]
        axes.plot(*_values(probed, "lr"), "o", color=RETAIN, markersize=4, label="probe")
    if plot.log_when_wide and spans_a_decade(drawn):
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if plot.signed:
        # Zero in the middle, and never so narrow that noise looks like a trend.
        edge = max(0.2, 1.1 * max(map(abs, drawn)))
        axes.set_ylim(-edge, edge)
        axes.axhline(0, color=MUTED, linewidth=0.8)
    elif 0 <= max(drawn) - min(drawn) < 0.02 * max(drawn):
        # A constant: without this the axis would magnify rounding.
        axes.set_ylim(0, 1.3 * max(drawn))
    _finish(axes, "optimizer step")


def _finish(axes: Axes, xlabel: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(axis="y")
    axes.set_xlabel(xlabel)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(
            frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, handlelength=2.4
        )


def spans_a_decade(values: Sequence[float]) -> bool:
    """Whether the positive values differ by a factor of 10 or more, and none is zero or less."""
    return bool(values) and min(values) > 0 and math.log10(max(values) / min(values)) >= 1


def _inline(drawing: str, name: str, title: str, text: str) -> str:
    """From matplotlib's file to an element: no prologue, no metadata, no fixed size, only ids that are referred to."""
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    referred = set(re.findall(r"#([A-Za-z_][\w.-]*)", drawing))
    drawing = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in referred else "", drawing)
    for stand_in, colour in PAPER_COLOURS.items():
        drawing = drawing.replace(stand_in, colour)
    # A page has one font and one set of rules for every stroke; matplotlib repeats its own on every label and element.
    drawing = re.sub(r"<style.*?</style>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"font-family: [^;\"]*; ?", "", drawing)
    drawing = re.sub(r"<[^>]*>", lambda tag: _COORDINATE.sub(lambda found: f"{float(found[0]):.2f}", tag[0]), drawing)
    view = re.search(r'viewBox="[^"]*"', drawing)
    assert view is not None
    name = f"plot-{name}"
    head = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg" {view[0]} role="img" '
        f'aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(text)}</desc>'
    )
    body = drawing[drawing.index(">") + 1 :]
    return re.sub(r"\n\s*", "\n", re.sub(r"<!--.*?-->", "", head + body, flags=re.DOTALL))
