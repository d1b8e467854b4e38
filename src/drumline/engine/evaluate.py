"""Evaluation: every sample once, no wrapper, one message at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from drumline.engine.meter import Meter, means
from drumline.engine.run import Run
from drumline.errors import ConfigError
from drumline.parallel.objective import add_sums
from drumline.parallel.strategy import Sums, needs_count


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
    """Metrics over the whole evaluation set, equal on all ranks; `count` is the number of samples."""
    feed = run.evaluation_feed
    if feed is None:
        raise ConfigError("there is no evaluation data", "give eval_data= to the trainer, or data.eval in the recipe")
    meter, samples = Meter(), 0
    with evaluating(run.model):
        for micro_batch in feed.evaluation():
            samples += micro_batch.samples
            if micro_batch.units == 0 and needs_count(run.task):
                continue
            sums: Sums = {}
            add_sums(sums, run.strategy.forward(micro_batch.batch), micro_batch)
            meter.add(sums)
    answers = run.groups.side.exchange("evaluate", [samples, meter.take()])
    return {"count": sum(answer[0] for answer in answers), **means([answer[1] for answer in answers])}
