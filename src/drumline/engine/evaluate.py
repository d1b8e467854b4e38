"""Evaluation: every sample once, no wrapper, and only at its end a meeting of the ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import nn

from drumline.engine.learning import watched_metric
from drumline.engine.lines import record_evaluation
from drumline.engine.measure import Measurement
from drumline.engine.meter import Meter, means
from drumline.engine.records import StepInfo
from drumline.engine.run import Run
from drumline.engine.tries import Passes, go_through
from drumline.errors import ConfigError
from drumline.parallel.objective import add_sums
from drumline.parallel.strategy import MAIN, Batch, Loss, MicroBatch, Strategy, Sums, Task, needs_count

logger = logging.getLogger("drumline")


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model into training or evaluation mode, and every module back into the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes:
            module.training = before


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Put the model into evaluation mode, and every module back into the mode that it had."""
    return in_mode(model, training=False)


def evaluate(run: Run) -> dict[str, float]:
    """Losses and metrics over the whole evaluation set, equal on all ranks; `count` is the number of samples.

    With averaged weights, if the run has them. Tasks may have metrics besides those of their Loss; see Measurement.
    Where memory runs out on a rank it is made anew with smaller batches; training's stay as they are.
    """
    with run.phase("evaluation"):
        found = _evaluate(run, yields=False)
    assert found is not None
    return found


def hold_evaluation(run: Run, info: StepInfo) -> None:
    """Evaluate within a run, and do what follows from it: write it down, early stopping, schedule, callbacks.

    Where a rank is asked to stop meanwhile, all give the evaluation up and owe it; `pay_evaluation` makes up for it.
    """
    with run.phase("evaluation"):
        metrics = _evaluate(run, yields=True)
    run.progress.owes_evaluation = metrics is None
    if metrics is None:
        run.event("evaluation_given_up", step=run.progress.step, reason=run.reason)
        return
    info.evaluation = record_evaluation(run, metrics, info.epoch)
    if run.progress.step:  # the one before the first update moves nothing
        schedule = run.config.train.schedule
        value = watched_metric(schedule, info.evaluation) if schedule.interval == "evaluation" else None
        run.strategy.advance("evaluation", value)
    run.callbacks.tell("on_evaluation", info)


def pay_evaluation(run: Run) -> None:
    """Before the first update: the evaluation that a stop has cut short, or the one that is due at start."""
    progress = run.progress
    at_start = run.config.evaluate.at_start and progress.step == 0
    if run.evaluation_feed is not None and (progress.owes_evaluation or at_start):
        # Of the update before: one that ended its epoch has moved the run on to the next.
        epoch = progress.epoch - 1 if progress.step and not progress.window else progress.epoch
        hold_evaluation(run, StepInfo(progress.step, epoch, 0, 0))


def _evaluate(run: Run, *, yields: bool) -> dict[str, float] | None:
    """yields: whether it is given up where a rank wants to stop; None: it was."""
    feed = run.evaluation_feed
    if feed is None:
        raise ConfigError("there is no evaluation data", "give eval_data= to the trainer, or data.eval in the recipe")
    while True:
        if run.progress.evaluation_batch is not None:
            feed.recut(run.progress.evaluation_batch)
        evaluation = _Evaluation(run)
        inside = partial(_inside, run)
        rows = run.progress.evaluation_batch or run.config.evaluate.batch or run.plan.micro_batch
        ended = go_through(
            run, Passes("evaluation", rows, feed.evaluation, inside, evaluation.add, evaluation.sums, yields=yields)
        )
        if ended.results is not None:
            return evaluation.values(ended.results)
        if ended.smaller is not None:
            run.progress.evaluation_batch = ended.smaller
        if ended.gave_up:
            return None


@contextmanager
def _inside(run: Run) -> Iterator[None]:
    with evaluating(run.model), run.strategy.averaged():
        yield


class _Evaluation:
    """What one evaluation comes to."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._samples = 0
        self._meters = [Meter() for _ in range(run.plan.num_shards // run.plan.world_size)]
        """By shard: what is on one device stays there."""
        device = run.groups.device
        self._measurements = {
            name: Measurement(task, device, "" if name == MAIN else f"{name}/") for name, task in run.tasks.items()
        }

    def add(self, micro_batch: MicroBatch) -> None:
        """Run every learner on a batch."""
        self._samples += micro_batch.samples
        for name, task in self._run.tasks.items():
            counts = micro_batch.weight > 0 and (micro_batch.units > 0 or not needs_count(task))
            if counts or self._run.strategy.forwards_together:
                loss = evaluation_pass(self._run.strategy, name, task, self._measurements[name], micro_batch)
                if counts:
                    sums: Sums = {}
                    add_sums(sums, loss, micro_batch, name)
                    self._meters[micro_batch.shard].add(sums)

    def sums(self) -> list[Any]:
        """What the other ranks must know, as JSON."""
        has_rows = [measurement.has_rows for measurement in self._measurements.values()]
        return [self._samples, [meter.take() for meter in self._meters], has_rows]

    def values(self, answers: Sequence[list[Any]]) -> dict[str, float]:
        """Means and metrics out of every rank's sums, by rank."""
        run, measurements = self._run, self._measurements
        by_shard = [sums for answer in answers for sums in answer[1]]
        found = {"count": sum(answer[0] for answer in answers), **means(by_shard)}
        for name, anywhere in zip(run.tasks, zip(*(answer[2] for answer in answers), strict=True), strict=True):
            if any(anywhere):
                found.update(_defined(run, measurements[name].values(run.groups)))
            found.update(_derived(run.tasks[name], found, "" if name == MAIN else f"{name}/"))
        return found


def evaluation_pass(
    strategy: Strategy, name: str, task: Task, measurement: Measurement, micro_batch: MicroBatch
) -> Loss:
    """One learner's loss on a batch, without gradient; its metrics take the outputs in."""
    if measurement.wants_outputs:
        return strategy.run(micro_batch, _Pass(task, measurement, micro_batch))
    return strategy.forward(name, micro_batch)


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
