"""The plots of a benchmark's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from drumline.track.bench import size_of
from drumline.track.figures import COLOURS, INK, MUTED, Floats, Plot, Record, figure, from_zero, line, short
from drumline.track.profile_page import PARTS
from drumline.track.units import plain

PHASES = (("forward_s", "forward"), ("backward_s", "backward"), ("optimizer_s", "optimizer"), ("rest_s", "rest"))


def draw_bench(result: Record) -> list[Plot]:
    """The plots of one result, by its kind. Raises MissingExtra without matplotlib."""
    drawings: dict[str, Callable[[Record], list[Plot]]] = {
        "train": _train,
        "comm": _comm,
        "data": _data,
        "scaling": _scaling,
    }
    return drawings[result["kind"]](result)


def _train(result: Record) -> list[Plot]:
    plots = [_steps(result["step_s"])]
    if result["breakdown"]:
        names = [f"rank {rank}" for rank in range(len(result["breakdown"]))]
        plots.append(stacked("breakdown", "A step by what the device did", names, result["breakdown"], PARTS))
    if result["phases"]:
        plots.append(stacked("phases", "A step by its phases", ["median"], [result["phases"]], PHASES))
    return plots


def _steps(found: Mapping[str, Any]) -> Plot:
    with figure("steps", "Step time", width=9.6, across="timed updates") as (axes, finish):
        milliseconds = 1000 * np.array(found["samples"], dtype=np.float64)
        places = np.arange(1, len(milliseconds) + 1, dtype=np.float64)
        line(axes, (places, milliseconds), 0, "each update", dots=True)
        axes.axhline(1000 * found["median"], color=COLOURS[1], linewidth=1.2, label="median")
        axes.axhspan(1000 * found["low"], 1000 * found["high"], color=COLOURS[1], alpha=0.15, linewidth=0)
        from_zero(axes, milliseconds)
        return finish("milliseconds", milliseconds)


def stacked(
    name: str, title: str, names: Sequence[str], bars: Sequence[Record], parts: Sequence[tuple[str, str]]
) -> Plot:
    """A bar for each name, in milliseconds, of parts that add up; (key of a record, label) a part."""
    with figure(name, title, below=len(parts), across="") as (axes, finish):
        bottom: Floats = np.zeros(len(bars))
        for index, (key, label) in enumerate(parts):
            heights = 1000 * np.array([bar[key] for bar in bars], dtype=np.float64)
            axes.bar(range(len(bars)), heights, bottom=bottom, color=COLOURS[index], label=label, width=0.6)
            bottom = bottom + heights
        axes.set_xticks(range(len(bars)), [short(each) for each in names])
        axes.set_xlim(-0.8, len(bars) - 0.2)
        from_zero(axes, bottom)
        return finish("milliseconds", bottom)


def _comm(result: Record) -> list[Plot]:
    return [
        _by_size("bandwidth", "Bus bandwidth", result["rows"], lambda row: row["bus_bytes_per_s"] / 1e9, "GB/s"),
        _by_size("latency", "Time of a call", result["rows"], lambda row: 1e6 * row["seconds"]["median"], "µs"),
    ]


def _by_size(name: str, title: str, rows: Sequence[Record], value: Callable[[Record], float], label: str) -> Plot:
    names = list(dict.fromkeys(row["collective"] for row in rows))
    width = 9.6 if name == "bandwidth" else 5.8
    with figure(name, title, width=width, below=len(names), across="message") as (axes, finish):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: size_of(value))
        everything = [np.empty(0)]
        for index, collective in enumerate(names):
            own = [row for row in rows if row["collective"] == collective]
            sizes = np.array([row["bytes"] for row in own], dtype=np.float64)
            values = np.array([value(row) for row in own])
            line(axes, (sizes, values), index, collective.replace("_", "-"), dots=True)
            everything.append(values)
        if name == "bandwidth":
            from_zero(axes, np.concatenate(everything))
        else:
            axes.set_yscale("log")
        return finish(label, np.concatenate(everything))


def _data(result: Record) -> list[Plot]:
    rows = result["rows"]
    with figure("loader", "The loader alone", width=9.6, across="loader processes a rank") as (axes, finish):
        rates = np.array([row["rows_per_s"] for row in rows], dtype=np.float64)
        spans = [
            [row["rows_per_s"] - row["interval"]["low"], row["interval"]["high"] - row["rows_per_s"]] for row in rows
        ]
        errors = np.abs(np.array(spans, dtype=np.float64)).T
        axes.bar(range(len(rows)), rates, yerr=errors, color=COLOURS[0], ecolor=INK, width=0.6)
        axes.set_xticks(range(len(rows)), [str(row["num_workers"]) for row in rows])
        axes.set_xlim(-0.8, len(rows) - 0.2)
        from_zero(axes, rates)
        return [finish("rows per second", rates)]


def _scaling(result: Record) -> list[Plot]:
    rows = result["rows"]
    parts = [row for row in rows if row["breakdown"]]
    names = [f"{row['processes']} {row['mode']}" for row in parts]
    bars = [row["breakdown"] for row in parts]
    plots = [_speed_up(rows)]
    if bars:
        plots.append(stacked("breakdown", "A step of the slowest rank", names, bars, PARTS))
    return plots


def _speed_up(rows: Sequence[Record]) -> Plot:
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    most = max(row["processes"] for row in rows)
    with figure("scaling", "Speed-up", width=9.6, below=len(modes) + 1, across="processes") as (axes, finish):
        axes.plot([0, most], [0, most], color=MUTED, linewidth=1.2, linestyle="dashed", label="linear")
        everything = [np.empty(0)]
        for index, mode in enumerate(modes):
            own = sorted((row for row in rows if row["mode"] == mode), key=lambda row: row["processes"])
            processes = np.array([row["processes"] for row in own], dtype=np.float64)
            speed_up = np.array([row["speed_up"] for row in own], dtype=np.float64)
            line(axes, (processes, speed_up), index, f"{mode}, {plain(own[-1]['efficiency'], 3)} at the end", dots=True)
            everything.append(speed_up)
        from_zero(axes, np.concatenate([*everything, [float(most)]]))
        return finish("times one process", np.concatenate(everything))
