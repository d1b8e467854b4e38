"""The plots of several runs, a curve each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from drumline.track.figures import MUTED, Plot, Record, Series, figure, from_zero, line, series, short, smoothed
from drumline.track.plots import MAX_PANELS, metric_names
from drumline.track.report import MEMORY


class Curves(NamedTuple):
    """What is drawn of one run."""

    label: str
    train: Sequence[Record]
    evals: Sequence[Record]


def draw_comparison(runs: Sequence[Curves]) -> list[Plot]:
    """Draw loss, evaluation, learning rate, rate and memory, one curve a run.

    A run keeps its colour in all plots. Where the runs count different units, the rate is in samples. Raises
    MissingExtra without matplotlib.
    """
    units = {str(record["unit"]) for run in runs for record in run.train if record.get("unit")}
    known = all(any("units_per_s" in record for record in run.train) for run in runs if run.train)
    speed, unit = ("units_per_s", next(iter(units))) if known and len(units) == 1 else ("samples_per_s", "samples")
    return [
        _overlay(runs, "loss", "Training loss", "loss", _training_loss),
        _evaluations(runs),
        _overlay(runs, "learning_rate", "Learning rate", "learning rate", lambda run: series(run.train, "lr")),
        _overlay(runs, "rate", "Throughput", f"{unit} per second", lambda run: series(run.train, speed)),
        _overlay(runs, "memory", "Memory", "highest of all ranks (GiB)", _memory),
    ]


def _overlay(runs: Sequence[Curves], name: str, title: str, label: str, curve_of: Callable[[Curves], Series]) -> Plot:
    wide = name == "loss"
    with figure(name, title, width=9.6 if wide else 5.8, below=len(runs)) as (axes, finish):
        everything = [np.empty(0)]
        for index, run in enumerate(runs):
            curve = curve_of(run)
            if len(curve[1]):
                line(axes, curve, index, run.label)
            everything.append(curve[1])
        values = np.concatenate(everything)
        if not wide:
            from_zero(axes, values)
        return finish(label, values)


def _evaluations(runs: Sequence[Curves]) -> Plot:
    names = dict.fromkeys(name for run in runs for name in metric_names(run.evals))
    keys = ["loss", *names][:MAX_PANELS]
    with figure("evaluation", "Evaluation", panels=len(keys), below=len(runs)) as (panels, finish):
        everything = [np.empty(0)]
        for axes, key in zip(panels if len(keys) > 1 else [panels], keys, strict=True):
            for index, run in enumerate(runs):
                curve = series(run.evals, key)
                if len(curve[1]):
                    line(axes, curve, index, run.label, dots=True)
                everything.append(curve[1])
            axes.set_ylabel("evaluation loss" if key == "loss" else short(key), color=MUTED, parse_math=False)
        return finish(None, np.concatenate(everything))


def _training_loss(run: Curves) -> Series:
    steps, losses = series(run.train, "loss")
    return steps, smoothed(losses)[0]


def _memory(run: Curves) -> Series:
    key = next((key for key in MEMORY if len(series(run.train, key)[1])), MEMORY[0])
    steps, values = series(run.train, key)
    return steps, values / 2**30
