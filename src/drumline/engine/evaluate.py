"""Evaluation: every sample once, no wrapper, and only at its end a meeting of the ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from drumline.engine.lockstep import in_step
from drumline.engine.measure import Measurement
from drumline.engine.meter import Meter, means
from drumline.engine.run import Run
from drumline.errors import ConfigError
from drumline.parallel.objective import add_sums
from drumline.parallel.strategy import MAIN, Batch, Loss, MicroBatch, Sums, Task, needs_count

logger = logging.getLogger("drumline")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and every module back into the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(run: Run) -> dict[str, float]:
    """Losses and metrics over the whole evaluation set, equal on all ranks; `count` is the number of samples.

    With averaged weights, if the run has them. Tasks may have metrics besides those of their Loss; see Measurement.
    """
    feed = run.evaluation_feed
    if feed is None:
        raise ConfigError("there is no evaluation data", "give eval_data= to the trainer, or data.eval in the recipe")
    samples = 0
    meters = [Meter() for _ in range(run.plan.num_shards // run.plan.world_size)]
    """By shard: what is on one device stays there."""
    device = run.groups.device
    measurements = {
        name: Measurement(task, device, "" if name == MAIN else f"{name}/") for name, task in run.tasks.items()
    }
    with evaluating(run.model), run.strategy.averaged():
        for micro_batch in in_step(run, feed.evaluation()):
            samples += micro_batch.samples
            for name, task in run.tasks.items():
                counts = micro_batch.weight > 0 and (micro_batch.units > 0 or not needs_count(task))
                if counts or run.strategy.forwards_together:
                    sums: Sums = {}
                    if measurements[name].wants_outputs:
                        loss = run.strategy.run(micro_batch, _Pass(task, measurements[name], micro_batch))
                    else:
                        loss = run.strategy.forward(name, micro_batch)
                    if counts:
                        add_sums(sums, loss, micro_batch, name)
                        meters[micro_batch.shard].add(sums)
    has_rows = [measurement.has_rows for measurement in measurements.values()]
    answers = run.groups.side.exchange("evaluate", [samples, [meter.take() for meter in meters], has_rows])
    by_shard = [sums for answer in answers for sums in answer[1]]
    found = {"count": sum(answer[0] for answer in answers), **means(by_shard)}
    for name, anywhere in zip(run.tasks, zip(*(answer[2] for answer in answers), strict=True), strict=True):
        if any(anywhere):
            found.update(_defined(run, measurements[name].values(run.groups)))
        found.update(_derived(run.tasks[name], found, "" if name == MAIN else f"{name}/"))
    return found


class _Pass:
    """One task's loss on a batch, with its metrics updated, as a strategy calls it."""

    def __init__(self, task: Task, measurement: Measurement, micro_batch: MicroBatch) -> None:
        self._task = task
        self._measurement = measurement
        self._counts = micro_batch.units > 0
        self._shard = micro_batch.shard

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        outputs = self._task.forward(model, batch)
        loss = Loss(*self._task.loss(outputs, batch))
        if self._counts:
            self._measurement.add(outputs, batch, self._shard, next(model.parameters()).device)
        return loss


def _defined(run: Run, values: dict[str, float]) -> dict[str, float]:
    """The values that are numbers. Of those that are none, as an AUC where all rows are of one class, the log tells.

    Only the first time: an evaluation before this one has left them out too.
    """
    last = run.progress.history[-1] if run.progress.history else values
    for name in (name for name, value in values.items() if math.isnan(value) and name in last):
        if run.is_rank_zero:
            logger.info("%s is not a number on this evaluation data, and is left out", name)
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _derived(task: Task, found: dict[str, float], prefix: str) -> dict[str, float]:
    """What the task makes of the means, such as a perplexity."""
    derive: Any = getattr(task, "derived", None)
    if derive is None:
        return {}
    own = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    return {f"{prefix}{name}": value for name, value in derive(own).items()}
