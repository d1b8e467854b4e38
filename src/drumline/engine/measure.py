"""A task's metrics: updated on each rank, merged exactly, computed on every rank alike."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drumline.engine.gather import gather
from drumline.errors import ConfigError
from drumline.parallel.groups import Groups
from drumline.parallel.strategy import Batch, Task
from drumline.track.protocol import RECORD_KEYS

if TYPE_CHECKING:
    from torchmetrics import Metric


class Measurement:
    """The metrics of one evaluation; of a task without any there are none.

    Each shard of this process has its own, where its replica is, so that no shard waits for another.
    """

    def __init__(self, task: Task, device: torch.device, prefix: str = "") -> None:
        """Raises ConfigError for a metric with a name that every line has. prefix: before each name."""
        known: Any = task
        self._task = known
        self._prefix = prefix
        self._metrics: dict[str, Metric] = {}
        if callable(getattr(task, "metrics", None)) and callable(getattr(task, "measure", None)):
            self._metrics = {name: metric.to(device) for name, metric in known.metrics().items()}
        self._by_shard: dict[int, dict[str, Metric]] = {0: self._metrics}
        if taken := sorted(self._metrics.keys() & RECORD_KEYS):
            raise ConfigError(f"a metric is called {taken[0]!r}, as the line's own value is", "call it something else")
        self.has_rows = False
        """Whether this rank has measured anything."""

    @property
    def wants_outputs(self) -> bool:
        """Whether there is any metric; the loss alone is cheaper without its model's outputs."""
        return bool(self._metrics)

    def add(self, outputs: Any, batch: Batch, shard: int = 0, device: torch.device | None = None) -> None:
        """Take in one batch of a shard; device: where a shard other than the first computes."""
        if shard not in self._by_shard:
            self._by_shard[shard] = {name: metric.to(device) for name, metric in self._task.metrics().items()}
        self._task.measure(self._by_shard[shard], outputs, batch)
        self.has_rows = True

    def values(self, groups: Groups) -> dict[str, float]:
        """The values over all ranks' rows. All ranks call it, if any of them has rows.

        Rows are put together in the order of the shards. Raises ConfigError for a metric that is not one number.
        """
        if not self._metrics:
            return {}
        parts = _parts(self._metrics)
        mine = [[_states(part) for part in _parts(self._by_shard[shard])] for shard in sorted(self._by_shard)]
        by_rank = gather(groups, mine, f"the metrics {', '.join(self._metrics)}")
        by_shard = [states for rank in by_rank for states in rank]
        for part, states in zip(parts, zip(*by_shard, strict=True), strict=True):
            part.dist_sync_fn = _Merge(states, type(part).__name__)
            part.distributed_available_fn = _always
        return {f"{self._prefix}{name}": _value(name, metric) for name, metric in self._metrics.items()}


def _parts(metrics: Mapping[str, Metric]) -> list[Metric]:
    """The metrics and those inside of them, as a wrapper has one."""
    from torchmetrics import Metric

    return [module for metric in metrics.values() for module in metric.modules() if isinstance(module, Metric)]


# torchmetrics merges states itself, by the rule that each was made with, out of lists that a function hands it, one
# list of all ranks' tensors a state. It is asked twice: once only to see the tensors, once with those of all ranks.


def _states(part: Metric) -> list[Tensor]:
    """Copies of this rank's states, on the CPU, in the order in which torchmetrics asks for them."""
    seen: list[Tensor] = []

    def look(state: Tensor, group: object = None) -> list[Tensor]:
        seen.append(state.detach().to("cpu", copy=True))
        return [state]

    part.sync(dist_sync_fn=look, distributed_available=_always)
    part.unsync()
    return seen


class _Merge:
    """Hands torchmetrics the states of all shards, one after the other."""

    def __init__(self, by_shard: Sequence[list[Tensor]], name: str) -> None:
        if len({len(states) for states in by_shard}) > 1:
            raise ConfigError(
                f"the shards' states of the metric {name} cannot be merged: they are lists of different lengths",
                "make the state with add_state(..., dist_reduce_fx='cat') or another rule",
            )
        self._states = iter(list(zip(*by_shard, strict=True)))

    def __call__(self, state: Tensor, group: object = None) -> list[Tensor]:
        states = next(self._states)
        # A shard without rows has an empty tensor of no particular type, which would change that of the others.
        filled = [each for each in states if each.numel()] or states[:1]
        return [each.to(state.device) for each in filled]


def _always() -> bool:
    return True


def _value(name: str, metric: Metric) -> float:
    with warnings.catch_warnings():
        # On a rank without rows of its own; by now it has those of the others.
        warnings.filterwarnings("ignore", "The ``compute`` method of metric", UserWarning)
        value = metric.compute()
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(f"the metric {name} gave {found}, not one number", "choose how it is averaged")
    return float(value)
