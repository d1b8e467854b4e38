"""One process, one device: the strategy that every other one must agree with."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from drumline.errors import ConfigError
from drumline.parallel.objective import Objective, add_sums, run_pass, to_device
from drumline.parallel.precision import Precision
from drumline.parallel.strategy import Batch, Loss, MakeOptimizer, MicroBatch, Outcome, Rates, Scale, Sums, Task
from drumline.parallel.update import Update

logger = logging.getLogger("drumline")


class Single:
    """Runs windows on one device without any communication."""

    def __init__(self, device: torch.device, precision: str, compile_objective: bool = False) -> None:
        self.device = device
        self._precision = Precision(precision, device)
        self._compile = compile_objective
        self._windows = 0

    def setup(self, model: nn.Module, task: Task, make_optimizer: MakeOptimizer, rates: Rates) -> None:
        """Take the model to the device and make the optimizer on it there."""
        self._model = model.to(self.device)
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError("the model has no parameter that requires a gradient", "unfreeze what is to be trained")
        self._objective = Objective(self._model, task)
        if self._compile:
            self._objective.compile()
        self._update = Update(make_optimizer(self._model), rates, self._precision.loss_scale)

    def window(self, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Accumulate the gradients of all micro-batches."""
        sums: Sums = {}
        for micro_batch in micro_batches:
            _, loss = run_pass(self._objective, micro_batch, scale, self._precision, self.device)
            add_sums(sums, loss, micro_batch)
        self._windows += 1
        return sums

    def notes(self) -> dict[str, list[str]]:
        """Name, once, the parameters that the first window gave no gradient."""
        if self._windows == 1:
            unused = [name for name, p in self._model.named_parameters() if p.requires_grad and p.grad is None]
            if unused:
                logger.warning("no gradient in the first update for: %s", ", ".join(unused))
        return {}

    def heed(self, notes: Sequence[dict[str, list[str]]]) -> None:
        """Nobody else is there."""

    def step(self, max_norm: float | None) -> Outcome:
        """Clip and update."""
        return self._update.apply(max_norm)

    def discard(self) -> None:
        """Drop the window's gradients."""
        self._update.clear()

    def forward(self, batch: Batch) -> Loss:
        """Forward pass without gradient."""
        with torch.no_grad(), self._precision.autocast():
            return Loss(*self._objective(to_device(batch, self.device)))

    def state(self) -> dict[str, Any]:
        """Model and update state."""
        return {"model": self._model.state_dict(), **self._update.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load model and update state."""
        self._model.load_state_dict(state["model"])
        self._update.load(state)

    def close(self) -> None:
        """Nothing is held."""
