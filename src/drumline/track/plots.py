"""The plots of one run's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drumline.track.figures import (
    COLOURS,
    EVAL,
    INK,
    MUTED,
    TRAIN,
    Floats,
    Plot,
    Record,
    Series,
    figure,
    from_zero,
    line,
    series,
    short,
    smoothed,
    thin,
)
from drumline.track.units import as_finite

PLOT_NAMES = ("loss", "evaluation", "learning_rate", "rate", "memory")
"""What a report draws, in its order."""

MAX_PANELS = 4
"""Panels of the evaluation plot: the loss and the first metrics beside it."""

MAX_LEARNERS = 5
"""Learners whose losses are drawn beside the sum of them."""

MEMORY_LABELS = {
    "memory_reserved_bytes": "reserved",
    "memory_peak_bytes": "peak",
    "memory_allocated_bytes": "allocated",
    "memory_resident_bytes": "resident",
}
"""Values by rank -> how the plot calls them."""


def draw_plots(train: Sequence[Record], evals: Sequence[Record], device: str) -> list[Plot]:
    """Draw loss, evaluation, learning rate, rate and memory from metrics.jsonl's records.

    Values that are missing or not finite leave a gap; a plot without any value says so. `device` (cuda, cpu or
    unknown) tells whose memory was measured. Raises MissingExtra without matplotlib.
    """
    unit = next((str(record["unit"]) for record in train if record.get("unit")), "samples")
    speed = "units_per_s" if any("units_per_s" in record for record in train) else "samples_per_s"
    unit = unit if speed == "units_per_s" else "samples"
    return [
        _loss_plot(train, evals),
        _evaluation_plot(evals),
        _line_plot("learning_rate", "Learning rate", "learning rate", series(train, "lr")),
        _line_plot("rate", "Throughput", f"{unit} per second", series(train, speed)),
        _memory_plot(train, device),
    ]


def metric_names(evals: Sequence[Record]) -> list[str]:
    """Evaluation metrics besides the loss that have a number, in the order of their first appearance."""
    passed_over = {"time", "kind", "step", "epoch", "count", "elapsed_s", "loss"}
    names = dict.fromkeys(key for record in evals for key in record if key not in passed_over)
    return [name for name in names if len(series(evals, name)[1])]


def _loss_plot(train: Sequence[Record], evals: Sequence[Record]) -> Plot:
    with figure("loss", "Loss", width=9.6) as (axes, finish):
        steps, losses = series(train, "loss")
        means, window = smoothed(losses)
        if window > 1:
            axes.plot(*thin(steps, losses), color=TRAIN, alpha=0.4, linewidth=1, label="training")
            line(axes, (steps, means), 0, f"training, average of {window} log lines")
        else:
            line(axes, (steps, losses), 0, "training")
        learners = dict.fromkeys(key for record in train for key in record if key.endswith("/loss"))
        for index, key in enumerate(list(learners)[:MAX_LEARNERS], start=2):
            own_steps, own = series(train, key)
            line(axes, (own_steps, smoothed(own)[0]), index, f"training, {key.removesuffix('/loss')}")
        eval_steps, eval_losses = series(evals, "loss")
        if len(eval_losses):
            line(axes, (eval_steps, eval_losses), 1, "evaluation", dots=True)
        return finish("loss", np.concatenate([losses, eval_losses]))


def _evaluation_plot(evals: Sequence[Record]) -> Plot:
    keys = ["loss", *metric_names(evals)][:MAX_PANELS]
    with figure("evaluation", "Evaluation", panels=len(keys)) as (panels, finish):
        everything = []
        for axes, key in zip(panels if len(keys) > 1 else [panels], keys, strict=True):
            curve = series(evals, key)
            everything.append(curve[1])
            line(axes, curve, 1, dots=True)
            axes.set_ylabel("evaluation loss" if key == "loss" else short(key), color=MUTED, parse_math=False)
            if key == "loss" and np.isfinite(curve[1]).any():
                _mark_best(axes, *curve)
        return finish(None, np.concatenate(everything))


def _line_plot(name: str, title: str, label: str, curve: Series) -> Plot:
    with figure(name, title) as (axes, finish):
        line(axes, curve, 0)
        from_zero(axes, curve[1])
        return finish(label, curve[1])


def _memory_plot(train: Sequence[Record], device: str) -> Plot:
    """Each kind of memory on the rank that has most of it; a band reaches down to the rank that has least."""
    whose = {"cuda": "GPU memory", "cpu": "memory of a process"}.get(device, "memory")
    kinds = sum(any(key in record for record in train) for key in MEMORY_LABELS)
    with figure("memory", "Memory", below=kinds) as (axes, finish):
        everything = [np.empty(0)]
        for index, (key, label) in enumerate(MEMORY_LABELS.items()):
            by_rank = [record for record in train if isinstance(record.get(key), list)]
            steps, top = series(by_rank, key)
            if not len(top):
                continue
            _, bottom = series([{**record, key: _lowest(record[key])} for record in by_rank], key)
            ranks = max(len(record[key]) for record in by_rank)
            everything.append(top / 2**30)
            line(axes, (steps, top / 2**30), index, f"{label}, highest of {ranks} ranks" if ranks > 1 else label)
            if len(bottom) == len(top) and (bottom < top).any():
                x, low = thin(steps, bottom / 2**30)
                axes.fill_between(
                    x, low, np.interp(x, steps, top / 2**30), color=COLOURS[index], alpha=0.15, linewidth=0
                )
        values = np.concatenate(everything)
        from_zero(axes, values)
        return finish(f"{whose} (GiB)", values)


def _lowest(values: Sequence[Any]) -> float | None:
    return min((number for value in values if (number := as_finite(value)) is not None), default=None)


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
