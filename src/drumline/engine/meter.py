"""Sums of one log interval or evaluation, and the means over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from drumline.errors import ConfigError
from drumline.parallel.objective import add, detached
from drumline.parallel.strategy import Sums
from drumline.track.protocol import RECORD_KEYS

METRIC = "metric/"
"""What the names of a task's metrics and of logged values begin with among the sums."""

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
        add(self._sums, f"{METRIC}{name}", detached(value) * weight, weight)

    def put_back(self, name: str, value: float, weight: float) -> None:
        """Add what an earlier attempt had summed up, under the name that `read` gave it."""
        add(self._sums, name, torch.tensor(value, dtype=torch.float64), weight)

    def take(self) -> HostSums:
        """Read and clear; one copy from the device for all values."""
        found = self.read()
        self._sums = {}
        return found

    def read(self) -> HostSums:
        """What is summed up so far."""
        names = list(self._sums)
        flat = [x if isinstance(x, Tensor) else torch.tensor(x) for name in names for x in self._sums[name]]
        device = next((x.device for x in flat if x.device.type != "cpu"), torch.device("cpu"))
        values = torch.stack([x.double().to(device, non_blocking=True) for x in flat]).tolist() if flat else []
        return {name: values[2 * i : 2 * i + 2] for i, name in enumerate(names)}


def by_rank(parts: Sequence[HostSums]) -> dict[str, list[float]]:
    """All ranks' sums as a checkpoint holds them: name -> sum and weight of rank 0, of rank 1, and so on."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [number for part in parts for number in part.get(name, (0.0, 0.0))] for name in names}


def means(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Means over all ranks: sums over weights, added in rank order, so that every rank has the same bits.

    A loss is the counted part (`total`) over its count plus the auxiliary part (`aux`) over its samples. With several
    learners these are `<learner>/total` and so on, each has its `<learner>/loss`, and `loss` is their sum. Metrics are
    called `metric/...`; any other sum is not shown. A name whose weights sum to zero is left out. Raises ConfigError
    for a metric with one of RECORD_KEYS, also behind a learner's name.
    """
    totals: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = (before[0] + value, before[1] + weight)
    known = {name: value / weight for name, (value, weight) in totals.items() if weight}
    metrics = {name.removeprefix(METRIC): v for name, v in known.items() if name.startswith(METRIC)}
    learners, result = learners_of(totals), dict[str, float]()
    for learner in learners:
        if f"{learner}total" in known:
            result[f"{learner}loss"] = known[f"{learner}total"] + known.get(f"{learner}aux", 0.0)
        if f"{learner}aux" in known:
            result[f"{learner}aux_loss"] = known[f"{learner}aux"]
    reserved = {f"{learner}{key}" for learner in ["", *learners] for key in RECORD_KEYS}
    if taken := sorted(metrics.keys() & reserved):
        raise ConfigError(f"a metric is called {taken[0]!r}, as the line's own value is", "call it something else")
    return {**sums_of(result), **result, **metrics}


def learners_of(names: Iterable[str]) -> list[str]:
    """Beginnings of the learners' names, such as `generator/`, in order; empty for the only one of a usual run."""
    own = [name for name in names if not name.startswith(METRIC)]
    return list(dict.fromkeys(name.removesuffix("total") for name in own if name.split("/")[-1] == "total"))


def sums_of(losses: Mapping[str, float]) -> dict[str, float]:
    """`loss` and `aux_loss` over all learners, where they have any."""
    found: dict[str, float] = {}
    for name, value in losses.items():
        key = name.split("/")[-1]
        found[key] = found.get(key, 0.0) + value
    return found
