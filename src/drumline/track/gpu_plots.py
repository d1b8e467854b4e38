"""The plot of a run's GPUs beside its loss, all over the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drumline.track.figures import MUTED, Floats, Plot, Record, Series, figure, line, smoothed, thin
from drumline.track.gpu_records import uuids_of, values_of
from drumline.track.units import as_float

GPU_PLOT = "gpus"
MOST_GPUS = 16
"""Curves that are drawn; the table has all GPUs."""
BANDS = 2
"""Most GPUs whose least and highest values are drawn as well."""

PANELS = (
    (("sm_active", "utilization"), "at work (%)", 100.0),
    (("memory_used_bytes",), "memory (GiB)", 2.0**-30),
    (("power_w",), "power (W)", 1.0),
    (("temperature_c",), "temperature (°C)", 1.0),
)
"""Fields, of which the first that any GPU tells is drawn; the axis; and what a value is multiplied with."""


def draw_gpus(train: Sequence[Record], gpus: Sequence[Record], labels: Mapping[str, str]) -> list[Plot]:
    """One figure of five panels: how much each GPU is at work, memory, power, temperature, and the training loss.

    All over the run's time in seconds, minutes or hours. Empty without records of GPUs. labels: by UUID. Raises
    MissingExtra without matplotlib.
    """
    uuids = [uuid for _, uuid in uuids_of(gpus)][:MOST_GPUS]
    if not uuids:
        return []
    unit, scale = time_unit(max(as_float(record.get("elapsed_s")) or 0.0 for record in gpus))
    across, num_panels = f"time ({unit})", len(PANELS) + 1
    with figure(GPU_PLOT, "GPUs", 9.6, num_panels, below=len(uuids), across=across) as (panels, finish):
        everything = [np.empty(0)]
        for axes, (fields, label, factor) in zip(panels, PANELS, strict=False):
            field = next((each for each in fields if _any(gpus, uuids, each)), fields[-1])
            for index, uuid in enumerate(uuids):
                curve = _curve(gpus, uuid, field, scale, factor)
                everything.append(curve[1])
                line(axes, curve, index, labels.get(uuid, uuid))
                if len(uuids) <= BANDS:
                    _band(axes, [_curve(gpus, uuid, field, scale, factor, end) for end in ("min", "max")], index)
            axes.set_ylim(0, 105 if factor == 100 else None)
            axes.set_ylabel(label, color=MUTED, parse_math=False)
        times, losses = _losses(train)
        line(panels[-1], (times / scale, smoothed(losses)[0]), len(uuids))
        panels[-1].set_ylabel("training loss", color=MUTED)
        return [finish(None, np.concatenate(everything))]


def time_unit(seconds: float) -> tuple[str, float]:
    """In what such a time is shown, and its seconds."""
    return ("s", 1.0) if seconds < 300 else ("min", 60.0) if seconds < 5 * 3600 else ("h", 3600.0)


def _any(gpus: Sequence[Record], uuids: Sequence[str], field: str) -> bool:
    return any(next(values_of(gpus, uuid, field), None) is not None for uuid in uuids)


def _curve(gpus: Sequence[Record], uuid: str, field: str, scale: float, factor: float, what: str = "mean") -> Series:
    table = np.array(list(values_of(gpus, uuid, field, what)), dtype=np.float64).reshape(-1, 2)
    return table[:, 0] / scale, table[:, 1] * factor


def _band(axes: Any, ends: Sequence[Series], index: int) -> None:
    (times, low), (others, high) = ends
    if len(times) and len(times) == len(others):
        x, bottom = thin(times, low)
        axes.fill_between(x, bottom, np.interp(x, times, high), color=axes.lines[-1].get_color(), alpha=0.15, lw=0)


def _losses(train: Sequence[Record]) -> tuple[Floats, Floats]:
    pairs = [(as_float(record.get("elapsed_s")), as_float(record.get("loss"))) for record in train]
    table = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
    return table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)
