"""One process, one device: the strategy that every other one must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from drumline.errors import ConfigError
from drumline.parallel.buffers import Buffers
from drumline.parallel.objective import Objective, add_sums, run_pass, to_device
from drumline.parallel.precision import Precision
from drumline.parallel.strategy import Batch, Loss, MakeOptimizer, MicroBatch, Outcome, Rates, Scale, Sums, Task
from drumline.parallel.unused import Unused
from drumline.parallel.update import Update


class Single:
    """Runs windows on one device without any communication."""

    def __init__(self, device: torch.device, precision: str, compile_objective: bool = False, rank: int = 0) -> None:
        self.device = device
        self._precision = Precision(precision, device)
        self._compile = compile_objective
        self._windows = 0
        self._unused = Unused(rank)

    def setup(self, model: nn.Module, task: Task, make_optimizer: MakeOptimizer, rates: Rates) -> None:
        """Take the model to the device and make the optimizer on it there."""
        self._model = model.to(self.device)
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError("the model has no parameter that requires a gradient", "unfreeze what is to be trained")
        self._trainable = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._objective = Objective(self._model, task)
        if self._compile:
            self._objective.compile()
        self._update = Update(make_optimizer(self._model), rates, self._precision.loss_scale)
        self._buffers = Buffers(self._model)
        self._skippable = rates.skippable

    def window(self, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Accumulate the gradients of all micro-batches."""
        self._buffers.keep()
        sums: Sums = {}
        for micro_batch in micro_batches:
            _, loss = run_pass(self._objective, micro_batch, scale, self._precision, self.device)
            add_sums(sums, loss, micro_batch)
        self._windows += 1
        return sums

    def notes(self) -> dict[str, list[str]]:
        """Names of the parameters that the window gave no gradient."""
        unused = [name for name, p in self._trainable.items() if p.grad is None] if self._windows else []
        return {"unused": unused} if unused else {}

    def heed(self, notes: Sequence[dict[str, list[str]]]) -> None:
        """Unused on all ranks: no gradient at all, as one process would have it. New names are warned of once."""
        for name in self._unused.heed(notes, self._windows):
            self._trainable[name].grad = None

    def step(self, max_norm: float | None) -> Outcome:
        """Clip and update."""
        outcome = self._update.apply(max_norm)
        if self._skippable:
            self._buffers.take_back_unless(outcome.applied)
        return outcome

    def discard(self) -> None:
        """Drop what the window did."""
        self._update.clear()
        self._buffers.take_back()

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
        """Say how often parameters went unused."""
        self._unused.summarise(self._windows)
