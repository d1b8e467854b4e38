"""Building blocks of the report's plots, as PNG files and as SVG that follows the page's colours.

Only here is matplotlib known.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.errors import MissingExtra
from drumline.track.units import as_float, highest

Record = Mapping[str, Any]
Floats = NDArray[np.float64]
Series = tuple[Floats, Floats]
"""Steps and values, NaN where a value is not finite."""
Finish = Callable[[str | None, Floats], "Plot"]
"""(label of the y axis or None where the panels have theirs, every value drawn) -> the finished plot."""

INK, MUTED, GRID = "#1d232b", "#5f6b7a", "#e3e7ec"
COLOURS = ("#2563c4", "#d3541b", "#1a7f4b", "#8b3fb5", "#a87b12", "#0e8491", "#b83263", "#6f6a3c")
"""Of curves, in order of use."""
TRAIN, EVAL = COLOURS[:2]
PAGE_COLOURS = {INK: "--ink", MUTED: "--muted", GRID: "--line"} | dict(
    zip(COLOURS, ("--train", "--eval", "--green", "--purple", "--ochre", "--teal", "--rose", "--olive"), strict=True)
)
"""Colour in a PNG, on white -> the page's variable that takes its place in the SVG."""

LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")
"""One after the other, once the colours are used up."""

MAX_POINTS = 2000
"""Points of a line; more than a plot this wide can show."""

MAX_LABEL = 40
"""Letters of a name in a plot."""


@dataclass(frozen=True)
class Plot:
    """One drawn plot; `name` is the PNG's name without its ending."""

    name: str
    title: str
    png: bytes
    svg: str


def smooth(values: Floats, window: int) -> Floats:
    """Moving average over `window` (odd) neighbours, passing over what is not finite.

    Towards both ends the window narrows to a tenth, so that a falling curve neither starts too low nor ends in noise.
    """
    index = np.arange(len(values))
    half = np.clip(np.minimum(index, index[::-1]), window // 10, window // 2)
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    finite = np.isfinite(values)
    totals = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    total, num = totals[last] - totals[first], counts[last] - counts[first]
    means: Floats = np.divide(total, num, out=np.full(len(values), np.nan), where=num > 0)
    return means


def thin(steps: Floats, values: Floats, limit: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """At most about `limit` points that keep every peak: lowest and highest of each stretch, in order."""
    if len(values) <= limit:
        return steps, values
    keep: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), limit // 2):
        finite = stretch[np.isfinite(values[stretch])]
        chosen = {finite[values[finite].argmin()], finite[values[finite].argmax()]} if len(finite) else {stretch[0]}
        keep.extend(sorted(int(index) for index in chosen))
    return steps[keep], values[keep]


def series(records: Sequence[Record], key: str) -> Series:
    """One value of each record that has it, the highest of a list by rank, over the completed updates."""
    pairs = [(as_float(record.get("step")), _value(record.get(key))) for record in records]
    points = [(step, value) for step, value in pairs if step is not None and value is not None]
    table = np.array(points, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)


def _value(value: Any) -> float | None:
    return highest(value) if isinstance(value, list) else as_float(value)


def smoothed(values: Floats) -> tuple[Floats, int]:
    """The values as a moving average and its window; as they are, with a window of 1, where they are few."""
    window = max(5, len(values) // 25) // 2 * 2 + 1
    return (smooth(values, window), window) if len(values) >= 2 * window else (values, 1)


def line(axes: Any, curve: Series, index: int, label: str | None = None, dots: bool = False) -> None:
    """Draw one curve in the colour and line style of this index, with dots where its points are few."""
    colour, style = COLOURS[index % len(COLOURS)], LINE_STYLES[index // len(COLOURS) % len(LINE_STYLES)]
    steps, values = curve
    marker = "o" if (dots and len(values) <= 60) or len(values) <= 3 else None
    shown = None if label is None else short(label)
    axes.plot(
        *thin(steps, values), color=colour, linestyle=style, linewidth=1.8, marker=marker, markersize=4.5, label=shown
    )


def short(label: str) -> str:
    """A name as it fits into a plot; matplotlib would leave out one that begins with an underscore."""
    text = label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
    return f" {text}" if text.startswith("_") else text


def from_zero(axes: Any, values: Floats) -> None:
    """Begin the y axis at 0, with room above the highest value."""
    top = float(values[np.isfinite(values)].max(initial=0.0))
    if top > 0:
        axes.set_ylim(0, top * 1.15)
    if top >= 1000:
        axes.yaxis.set_major_formatter("{x:,.0f}")


@contextmanager
def figure(
    name: str, title: str, width: float = 5.8, panels: int = 1, below: int = 0, across: str = "completed updates"
) -> Iterator[tuple[Any, Finish]]:
    """Give axes and a function that turns them into the Plot; matplotlib's settings hold for this figure only.

    below: curves of the first panel that are named in a legend below the figure; 0: in the panel, where it has names.
    across: label of the x axis, which counts whole things unless it is logarithmic or has names. Raises MissingExtra
    without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "report") from error
    # Text stays text: it takes the page's font. The salt makes ids the same every time and different between plots.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        columns = 2 if width < 8 else 3
        height = max(3.4, 1.0 + 1.7 * panels) + 0.22 * math.ceil(below / columns)
        drawn = Figure(figsize=(width, height), layout="constrained")
        grid = drawn.subplots(panels, 1, sharex=True)
        drawn.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")

        def finish(label: str | None, values: Floats) -> Plot:
            every = [grid] if panels == 1 else list(grid)
            for axes in every:
                _dress(axes)
                if label is not None:
                    axes.set_ylabel(label, color=MUTED, parse_math=False)
            every[-1].set_xlabel(across, color=MUTED)
            if every[-1].get_xscale() == "linear" and not has_names(every[-1]):
                every[-1].xaxis.set_major_formatter("{x:,.0f}")
                every[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 2.5, 5, 10]))
            if not np.isfinite(values).any():
                _say_empty(every, "no finite value was recorded" if len(values) else "nothing was recorded")
            elif every[0].get_legend_handles_labels()[1]:
                _name_curves(drawn if below else every[0], every[0], columns if below else 1)
            return Plot(name, title, _png(drawn), _svg(drawn, name, title))

        yield grid, finish


def _name_curves(place: Any, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    where = {"loc": "outside lower left"} if place is not axes else {}
    legend = place.legend(handles, labels, frameon=False, labelcolor=INK, ncols=columns, **where)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _dress(axes: Any) -> None:
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(MUTED)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, length=0)
    axes.tick_params(axis="x", length=3)
    axes.yaxis.get_offset_text().set_color(MUTED)
    if axes.get_xscale() == "linear" and not has_names(axes):
        axes.set_xlim(left=0)


def has_names(axes: Any) -> bool:
    """Whether names stand along the x axis, as below bars, in the place of numbers."""
    from matplotlib.ticker import FixedLocator

    return isinstance(axes.xaxis.get_major_locator(), FixedLocator)


def _say_empty(every: Sequence[Any], text: str) -> None:
    for axes in every:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()


def _svg(figure: Any, name: str, title: str) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    figure.savefig(buffer, format="svg", facecolor="none", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    for colour, variable in PAGE_COLOURS.items():
        text = text.replace(colour, f"var({variable})")
    size = re.search(r'viewBox="[^"]*"', text)
    assert size is not None  # matplotlib writes one
    return f'<svg {size[0]} role="img" aria-label="{title}">' + text[text.index(">") + 1 :]
