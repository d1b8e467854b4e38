"""The report's plots, as PNG files and as SVG that follows the page's colours. Only here is matplotlib known."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.errors import MissingExtra
from drumline.track.units import as_float

Record = Mapping[str, Any]
Floats = NDArray[np.float64]
Finish = Callable[[str | None, Floats], "Plot"]
"""(label of the y axis or None where the panels have theirs, every value drawn) -> the finished plot."""

INK, MUTED, GRID, TRAIN, EVAL = "#1d232b", "#5f6b7a", "#e3e7ec", "#2563c4", "#d3541b"
PAGE_COLOURS = {INK: "--ink", MUTED: "--muted", GRID: "--line", TRAIN: "--train", EVAL: "--eval"}
"""Colour in a PNG, on white -> the page's variable that takes its place in the SVG."""

PLOT_NAMES = ("loss", "evaluation", "learning_rate", "rate", "memory")
"""What `draw_plots` draws, in its order."""

MAX_POINTS = 2000
"""Points of a line; more than a plot this wide can show."""

MAX_PANELS = 4
"""Panels of the evaluation plot: the loss and the first metrics beside it."""


@dataclass(frozen=True)
class Plot:
    """One drawn plot; `name` is the PNG's name without its ending."""

    name: str
    title: str
    png: bytes
    svg: str


def draw_plots(train: Sequence[Record], evals: Sequence[Record], device: str) -> list[Plot]:
    """Draw loss, evaluation, learning rate, rate and memory from metrics.jsonl's records.

    Values that are missing or not finite leave a gap; a plot without any value says so. `device` (cuda, cpu or
    unknown) tells whose memory was measured. Raises MissingExtra without matplotlib.
    """
    unit = next((str(record["unit"]) for record in train if record.get("unit")), "samples")
    speed = "units_per_s" if any("units_per_s" in record for record in train) else "samples_per_s"
    memory = {"cuda": "peak memory of rank 0's GPU", "cpu": "resident memory of rank 0"}.get(device, "memory of rank 0")
    gib = [{**record, "gib": (as_float(record.get("memory_bytes")) or np.nan) / 2**30} for record in train]
    unit = unit if speed == "units_per_s" else "samples"
    return [
        _loss_plot(train, evals),
        _evaluation_plot(evals),
        _line_plot("learning_rate", "Learning rate", "learning rate", _series(train, "lr")),
        _line_plot("rate", "Throughput", f"{unit} per second", _series(train, speed)),
        _line_plot("memory", "Memory", f"{memory} (GiB)", _series(gib, "gib")),
    ]


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


def _series(records: Sequence[Record], key: str) -> tuple[Floats, Floats]:
    pairs = [(as_float(record.get("step")), as_float(record.get(key))) for record in records]
    points = [(step, value) for step, value in pairs if step is not None and value is not None]
    table = np.array(points, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)


def _loss_plot(train: Sequence[Record], evals: Sequence[Record]) -> Plot:
    with _figure("loss", "Loss", width=9.6) as (axes, finish):
        steps, losses = _series(train, "loss")
        window = max(5, len(losses) // 25) // 2 * 2 + 1
        if len(losses) >= 2 * window:
            axes.plot(*thin(steps, losses), color=TRAIN, alpha=0.4, linewidth=1, label="training")
            label = f"training, average of {window} log lines"
            axes.plot(*thin(steps, smooth(losses, window)), color=TRAIN, linewidth=1.8, label=label)
        else:
            _line(axes, steps, losses, TRAIN, "training")
        eval_steps, eval_losses = _series(evals, "loss")
        if len(eval_losses):
            _line(axes, eval_steps, eval_losses, EVAL, "evaluation", dots=True)
        return finish("loss", np.concatenate([losses, eval_losses]))


def _evaluation_plot(evals: Sequence[Record]) -> Plot:
    passed_over = {"time", "step", "epoch", "count", "elapsed_s", "loss"}
    names = dict.fromkeys(key for record in evals for key in record if key not in passed_over)
    keys = ["loss", *(name for name in names if len(_series(evals, name)[1]))][:MAX_PANELS]
    with _figure("evaluation", "Evaluation", panels=len(keys)) as (panels, finish):
        everything = []
        for axes, key in zip(panels if len(keys) > 1 else [panels], keys, strict=True):
            steps, values = _series(evals, key)
            everything.append(values)
            _line(axes, steps, values, EVAL, None, dots=True)
            axes.set_ylabel("evaluation loss" if key == "loss" else key[:40], color=MUTED, parse_math=False)
            if key == "loss" and np.isfinite(values).any():
                _mark_best(axes, steps, values)
        return finish(None, np.concatenate(everything))


def _line_plot(name: str, title: str, label: str, series: tuple[Floats, Floats]) -> Plot:
    with _figure(name, title) as (axes, finish):
        _line(axes, *series, TRAIN, None)
        finite = series[1][np.isfinite(series[1])]
        top = float(finite.max(initial=0.0))
        if top > 0:
            axes.set_ylim(0, top * 1.15)
        if top >= 1000:
            axes.yaxis.set_major_formatter("{x:,.0f}")
        return finish(label, series[1])


def _line(axes: Any, steps: Floats, values: Floats, colour: str, label: str | None, dots: bool = False) -> None:
    marker = "o" if (dots and len(values) <= 60) or len(values) <= 3 else None
    x, y = thin(steps, values)
    axes.plot(x, y, color=colour, linewidth=1.8, marker=marker, markersize=4.5, label=label)


def _mark_best(axes: Any, steps: Floats, values: Floats) -> None:
    best = int(np.nanargmin(values))
    axes.plot(steps[best], values[best], "o", color=EVAL, markersize=10, fillstyle="none", markeredgewidth=1.4)
    right = steps[best] > (steps[0] + steps[-1]) / 2
    axes.annotate(
        f"best {values[best]:.4g}",
        (steps[best], values[best]),
        xytext=(-6 if right else 6, 12),
        textcoords="offset points",
        ha="right" if right else "left",
        color=INK,
    )


@contextmanager
def _figure(name: str, title: str, width: float = 5.8, panels: int = 1) -> Iterator[tuple[Any, Finish]]:
    """Give axes and a function that turns them into the Plot; matplotlib's settings hold for this figure only."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "report") from error
    # Text stays text: it takes the page's font. The salt makes ids the same every time and different between plots.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        figure = Figure(figsize=(width, max(3.4, 1.0 + 1.7 * panels)), layout="constrained")
        grid = figure.subplots(panels, 1, sharex=True)
        figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")

        def finish(label: str | None, values: Floats) -> Plot:
            every = [grid] if panels == 1 else list(grid)
            for axes in every:
                _dress(axes)
                if label is not None:
                    axes.set_ylabel(label, color=MUTED, parse_math=False)
            every[-1].set_xlabel("completed updates", color=MUTED)
            every[-1].xaxis.set_major_formatter("{x:,.0f}")
            every[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 2.5, 5, 10]))
            if not np.isfinite(values).any():
                _say_empty(every, "no finite value was recorded" if len(values) else "nothing was recorded")
            elif every[0].get_legend_handles_labels()[1]:
                every[0].legend(frameon=False, labelcolor=INK)
            return Plot(name, title, _png(figure), _svg(figure, name, title))

        yield grid, finish


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
    axes.set_xlim(left=0)


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
