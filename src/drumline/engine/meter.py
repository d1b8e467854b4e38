"""Sums of one log interval or evaluation, and the means over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from drumline.errors import ConfigError
from drumline.parallel.objective import add, detached
from drumline.parallel.strategy import Sums
from drumline.track.protocol import RECORD_KEYS

HostSums = dict[str, list[float]]
"""Metric name -> [sum, weight] of one rank, as it travels over the side channel."""


class Meter:
    """Adds up windows on the device; the host reads it once a log interval."""

    def __init__(self) -> None:
        self._sums: Sums = {}

    def add(self, sums: Sums, applied: Tensor | None = None) -> None:
        """Add one window's or micro-batch's sums; applied: 0.0 for a window that was skipped and does not count."""
        for name, (value, weight) in sums.items():
            if applied is not None:
                value, weight = torch.where(applied > 0, value, 0.0), weight * applied.double()
            add(self._sums, name, value, weight)

    def log(self, name: str, value: float | Tensor, weight: float) -> None:
        """Add a user's value, as part of a mean with this weight."""
        add(self._sums, f"metric/{name}", detached(value) * weight, weight)

    def take(self) -> HostSums:
        """Read and clear; one copy from the device for all values."""
        names = list(self._sums)
        flat = [x if isinstance(x, Tensor) else torch.tensor(x) for name in names for x in self._sums[name]]
        device = next((x.device for x in flat if x.device.type != "cpu"), torch.device("cpu"))
        values = torch.stack([x.double().to(device, non_blocking=True) for x in flat]).tolist() if flat else []
        self._sums = {}
        return {name: values[2 * i : 2 * i + 2] for i, name in enumerate(names)}


def means(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Means over all ranks: sums over weights, added in rank order, so that every rank has the same bits.

    `loss` is the counted part over its count plus the auxiliary part over its samples; a name whose weights sum to
    zero is left out. Raises ConfigError for a metric with one of RECORD_KEYS.
    """
    totals: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = (before[0] + value, before[1] + weight)
    known = {name: value / weight for name, (value, weight) in totals.items() if weight}
    result: dict[str, float] = {}
    if "total" in known:
        result["loss"] = known["total"] + known.get("aux", 0.0)
    if "aux" in known:
        result["aux_loss"] = known["aux"]
    metrics = {name.removeprefix("metric/"): v for name, v in known.items() if name.startswith("metric/")}
    if taken := sorted(metrics.keys() & RECORD_KEYS):
        raise ConfigError(f"a metric is called {taken[0]!r}, as the line's own value is", "call it something else")
    return result | metrics
