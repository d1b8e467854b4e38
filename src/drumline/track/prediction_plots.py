"""The plots of a prediction run's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drumline.track.figures import COLOURS, INK, MUTED, Floats, Plot, Record, figure, from_zero, line, short
from drumline.track.prediction import PredictionRecords, Throughput, throughput
from drumline.track.units import as_finite

PREDICTION_PLOTS = ("throughput", "lengths", "labels", "confusion")
"""What a prediction's report draws, in its order; the last two where there are labels."""
MOST_CURVES = 8
"""Workers with a curve of their own; of more, all together are drawn."""
MOST_BARS = 24
"""Labels with a bar: the most frequent ones."""
MOST_CLASSES = 24
"""Classes of a confusion matrix that is drawn; the page's table has the F1 of all."""


def draw_prediction(records: PredictionRecords) -> list[Plot]:
    """Throughput over time by worker, lengths, and counts of labels and their confusion where there are any.

    Raises MissingExtra without matplotlib.
    """
    plots = [_throughput(throughput(records.workers)), _lengths(records.summary.get("lengths"))]
    labels, confusion = records.summary.get("labels"), records.summary.get("confusion")
    if isinstance(labels, Mapping) and labels:
        plots.append(_labels(labels))
    if isinstance(confusion, Mapping) and 0 < len(classes_of(confusion)) <= MOST_CLASSES:
        plots.append(_confusion(confusion))
    return plots


def classes_of(confusion: Mapping[str, Any]) -> list[str]:
    """All classes of a confusion, right and predicted ones, in order."""
    predicted = (name for row in confusion.values() if isinstance(row, Mapping) for name in row)
    return sorted({*confusion, *predicted})


def _throughput(found: Throughput) -> Plot:
    curves = {name: np.array(rates) for name, rates in found.rows_per_s.items()}
    total: Floats = np.sum(list(curves.values()), axis=0) if curves else np.empty(0)
    seconds = np.array(found.seconds)
    shown = curves if 1 < len(curves) <= MOST_CURVES else {}
    across = "seconds since the beginning"
    with figure("throughput", "Throughput", width=9.6, below=len(shown) + 1, across=across) as (axes, finish):
        line(axes, (seconds, total), 0, f"all {len(curves)} workers" if len(curves) > 1 else "rows")
        for index, (name, rates) in enumerate(shown.items(), 1):
            line(axes, (seconds, rates), index, name)
        from_zero(axes, total)
        return finish("rows per second", total)


def _lengths(found: Any) -> Plot:
    pairs = [(edge, count) for edge, count in found if _both(edge, count)] if isinstance(found, Sequence) else []
    counts = np.array([count for _, count in pairs], dtype=np.float64)
    names = [f"≤ {int(edge):,}" for edge, _ in pairs]
    return _bars("lengths", "Lengths of the rows", names, counts, "tokens of a row")


def _labels(labels: Mapping[str, Any]) -> Plot:
    known = [(name, count) for name, value in labels.items() if (count := as_finite(value)) is not None]
    most = sorted(known, key=lambda pair: (-pair[1], pair[0]))[:MOST_BARS]
    title = "Answers by label" if len(most) == len(known) else f"Answers by label, the {MOST_BARS} most frequent"
    return _bars("labels", title, [name for name, _ in most], np.array([count for _, count in most]), "")


def _bars(name: str, title: str, names: Sequence[str], counts: Floats, across: str) -> Plot:
    with figure(name, title, across=across) as (axes, finish):
        axes.bar(range(len(counts)), counts, color=COLOURS[0], width=0.7)
        _name_ticks(axes.xaxis, names, rotation=0 if max(map(len, names), default=0) * len(names) < 60 else 60)
        axes.set_xlim(-0.8, max(0, len(names) - 1) + 0.8)
        from_zero(axes, counts)
        return finish("rows", counts)


def _confusion(confusion: Mapping[str, Any]) -> Plot:
    names = classes_of(confusion)
    rows = np.array([[_cell(confusion, right, found) for found in names] for right in names])
    shares = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)
    with figure("confusion", "Confusion", across="predicted") as (axes, finish):
        # Squares of one colour, the fuller the larger their share of the row: it follows the page's colours.
        for (right, found), share in np.ndenumerate(shares):
            axes.add_patch(_square(found, right, float(share)))
            if len(names) <= 12:
                text = f"{int(rows[right, found]):,}"
                axes.text(found, right, text, ha="center", va="center", color=INK, fontsize=9)
        _name_ticks(axes.xaxis, names, rotation=0 if max(map(len, names)) * len(names) < 60 else 60)
        _name_ticks(axes.yaxis, names, rotation=0)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        plot = finish("right", rows)
    return plot


def _square(column: int, row: int, share: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=COLOURS[0], alpha=0.75 * share, linewidth=0)


def _name_ticks(axis: Any, names: Sequence[str], rotation: int) -> None:
    axis.set_ticks(range(len(names)), [short(name) for name in names])
    for label in axis.get_ticklabels():
        label.set_parse_math(False)
        label.set_rotation(rotation)
        label.set_color(MUTED)
        if rotation:
            label.set_horizontalalignment("right")


def _cell(confusion: Record, right: str, found: str) -> float:
    row = confusion.get(right)
    return (as_finite(row.get(found)) or 0.0) if isinstance(row, Mapping) else 0.0


def _both(edge: Any, count: Any) -> bool:
    return as_finite(edge) is not None and as_finite(count) is not None
