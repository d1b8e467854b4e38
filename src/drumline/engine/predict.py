"""Prediction: one entry a row, in the order of the data set, on all ranks alike."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor, nn

from drumline.data.source import Collate, as_source
from drumline.engine.evaluate import evaluating
from drumline.engine.feeds import evaluation_feed
from drumline.engine.gather import gather
from drumline.engine.run import Run
from drumline.engine.tries import Passes, go_through
from drumline.errors import ConfigError, DataError
from drumline.parallel.strategy import Batch, Loss, MicroBatch, Strategy, Task

Forward = Callable[[nn.Module, Batch], Any]

_FIX = "give forward= with a function of (model, batch) that returns tensors whose first dimension is the rows"


def predict(run: Run, data: Any, *, collate: Collate | None = None, forward: Forward | None = None) -> list[Any]:
    """What the model says to each row, each row once, in the order of the data set, on all ranks alike.

    An entry is a row of what the task predicts, or of what `forward(model, batch)` returns: a tensor on the CPU, or a
    dict, list or tuple of such. Rows need no labels. All ranks call it, and all hold all entries. Averaged weights are
    used, if the run has them. Raises ConfigError for a task that says nothing of predictions where there is no
    `forward`, and for a stream over several processes; DataError where rows come or go. Where memory runs out on a
    rank, all begin again with smaller batches, in this call alone.
    """
    source = as_source(data, collate)
    ranks = run.groups.world.size
    if source.is_stream and ranks > 1:
        raise ConfigError(
            f"a stream has no order that {ranks} processes could share, so that predictions could be put in its order",
            "hand in a data set with __len__ and __getitem__, or predict in one process",
        )
    plan = run.plan
    if source.is_stream:  # several loader processes, or shards, would read parts of it side by side
        source = dataclasses.replace(source, num_workers=0)
        plan = dataclasses.replace(plan, num_shards=ranks)
    num_local = plan.num_shards // ranks
    function = forward or _forward_of(run.task)
    known = (run.config.evaluate.batch or source.batch_size, run.progress.evaluation_batch)
    batch = min((size for size in known if size is not None), default=None)
    while True:
        config = run.config
        if batch is not None:
            config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"batch": batch})})
        feed = evaluation_feed(source, _Rows(run.task), config, plan, run.groups.world)
        kept = _Kept(run.strategy, function, num_local)
        try:
            rows, inside = batch or plan.micro_batch, partial(kept.inside, run.model)
            ended = go_through(run, Passes("prediction", rows, feed.evaluation, inside, kept.add, kept.result))
        finally:
            feed.close()
        if ended.results is not None:
            break
        batch = ended.smaller  # for this call only: another function may take less
    found: list[Any] = []
    for part in gather(run.groups, kept.by_shard, "predictions"):
        for num_rows, outputs in chain.from_iterable(part):
            found.extend(_row(outputs, row) for row in range(num_rows))
    if source.num_rows is not None and len(found) != source.num_rows:
        raise DataError(f"{len(found)} rows were read of {source.num_rows}", "let len() of the data set be its rows")
    return found


class _Kept:
    """The predictions of one process, on the CPU."""

    def __init__(self, strategy: Strategy, function: Forward, num_local: int) -> None:
        self._strategy = strategy
        self._function = function
        self._running: deque[tuple[MicroBatch, Any]] = deque()
        self.by_shard: list[list[tuple[int, Any]]] = [[] for _ in range(num_local)]
        """Number of rows and outputs of each batch."""

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """The context of all passes; at its end there is nothing left to wait for."""
        try:
            with evaluating(model), self._strategy.averaged():
                yield
                self._keep(0)
        finally:
            self._running.clear()

    def add(self, micro_batch: MicroBatch) -> None:
        """Predict one batch."""
        self._running.append((micro_batch, self._strategy.run(micro_batch, self._function)))
        self._keep(len(self.by_shard) - 1)  # every shard's device has one to compute

    def _keep(self, num_running: int) -> None:
        """Wait for all batches but the newest."""
        while len(self._running) > num_running:
            micro_batch, outputs = self._running.popleft()
            if micro_batch.weight:
                entry = micro_batch.samples, _kept(outputs, micro_batch.samples)
                self.by_shard[micro_batch.shard].append(entry)

    def result(self) -> None:
        """They are gathered by other means."""


def _forward_of(task: Task) -> Forward:
    known: Any = task
    if not callable(getattr(task, "predict", None)):
        raise ConfigError(f"what a {type(task).__name__} predicts is not known", _FIX)
    return lambda model, batch: known.predict(known.forward(model, batch), batch)


class _Rows:
    """A task for the loader that needs no labels: rows are checked and not counted. A class, so that it pickles."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def count(self, batch: Batch) -> int:
        """Nothing is learned."""
        return 0

    def check(self, batch: Batch) -> None:
        """The task's own."""
        self._task.check(batch)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The task's own."""
        return self._task.forward(model, batch)

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """Nothing is learned."""
        raise AssertionError("rows to predict are not learned from")


def _kept(outputs: Any, num_rows: int) -> Any:
    """Outputs of a batch on the CPU, in memory of their own; ConfigError where they are not one a row."""
    if isinstance(outputs, Tensor):
        if outputs.dim() == 0 or len(outputs) != num_rows:
            raise ConfigError(f"predictions for {num_rows} rows have the shape {list(outputs.shape)}", _FIX)
        # Also because a view would take all along that it is a view of, such as a whole vocabulary's scores.
        return outputs.detach().to("cpu", copy=True)
    if isinstance(outputs, Mapping):
        return {name: _kept(value, num_rows) for name, value in outputs.items()}
    if isinstance(outputs, list | tuple) and all(isinstance(item, Tensor | Mapping) for item in outputs):
        return tuple(_kept(item, num_rows) for item in outputs)
    raise ConfigError(f"predictions are a {type(outputs).__name__}", _FIX)


def _row(outputs: Any, row: int) -> Any:
    if isinstance(outputs, Tensor):
        return outputs[row]
    if isinstance(outputs, dict):
        return {name: _row(value, row) for name, value in outputs.items()}
    return tuple(_row(item, row) for item in outputs)
