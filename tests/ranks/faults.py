"""Training runs of which memory runs out on one rank: a torch.OutOfMemoryError is raised where the allocator would."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline import Trainer
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model

Where = Literal["forward", "backward", "synchronising", "step", "after the step"]


@dataclass(frozen=True)
class Fault:
    """One error on one rank."""

    where: Where
    rank: int = 1
    update: int = 2
    """Updates that are done before it."""
    above: int = 0
    """Only of micro-batches with more rows than that; 0: once, whatever their size."""
    error: type[Exception] = torch.OutOfMemoryError
    text: str = "CUDA out of memory. Planted"


@dataclass
class Seen:
    """What one rank saw of a run."""

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    """Rows by pass, the first of a recovered window's included."""
    sizes: list[int] = field(default_factory=list)
    """Rows of each training pass."""
    steps: int = 0
    micro_batch: int | None = None
    generation: int = 0
    state: dict[str, Tensor] | None = None
    """Averaged weights and moments, where asked for."""
    events: list[dict[str, Any]] = field(default_factory=list)


class Planter:
    """Raises the faults of this rank when their time has come."""

    def __init__(self, faults: Sequence[Fault], model: nn.Module, seen: Seen) -> None:
        self.updates = 0
        self._faults = [fault for fault in faults if fault.rank == int(os.environ["RANK"])]
        self._fired: set[Fault] = set()
        self._seen = seen
        self._last_pass = False
        self._rows = 0
        first = next(iter(model.children()))
        first.register_forward_pre_hook(self._forward)
        first.register_forward_hook(self._backward)
        next(first.parameters()).register_hook(self._reduced)

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        optimizer.register_step_pre_hook(lambda *_: self._raise("step"))
        optimizer.register_step_post_hook(lambda *_: self._raise("after the step"))
        return optimizer

    def _forward(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if module.training:
            self._rows = len(args[0])
            self._seen.sizes.append(self._rows)
            self._raise("forward")

    def _backward(self, module: nn.Module, args: object, output: Tensor) -> None:
        if module.training and output.requires_grad:
            output.register_hook(lambda _: self._raise("backward"))

    def _reduced(self, gradient: Tensor) -> None:
        """The gradient that is last in a backward pass: the others' buckets are on their way in the window's last."""
        self._raise("synchronising")

    def _raise(self, where: Where) -> None:
        for fault in self._faults:
            again = fault.above and self._rows > fault.above
            once = not fault.above and fault not in self._fired and self.updates == fault.update
            if fault.where == where and (again or once):
                self._fired.add(fault)
                raise fault.error(fault.text)


def train_with(
    case: Case,
    faults: Sequence[Fault],
    make: Callable[[], nn.Module] = make_model,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    after: Callable[[Trainer, Seen], None] | None = None,
) -> Seen:
    """Run the case on this rank, with these faults."""
    seen, model = Seen(), make()
    planter = Planter(faults, model, seen)
    options: dict[str, Any] = {}
    if optimizer is not None:
        options["optimizer"] = partial(watched, planter, optimizer)
    if case.num_eval_rows is not None:
        options["eval_data"] = MaskedRows(case.num_eval_rows, case.lengths)
    task = MaskedRegression(seen.trained, aux=case.aux)
    with Trainer(model, config_of(case), MaskedRows(case.num_rows, case.lengths), loss=task, **options) as trainer:
        for info in trainer.steps():
            planter.updates = info.step
            if info.logged is not None:
                seen.losses.append(info.logged["loss"])
                seen.rates.append(info.logged["lr"])
            seen.samples.append(info.samples)
            seen.steps = info.step
        if after is not None:
            after(trainer, seen)
        run = trainer._run
        seen.micro_batch, seen.generation = run.progress.micro_batch, run.groups.side.generation
        weights = trainer._run.strategy.state()["model"]  # whole on rank 0, where it is sharded
        seen.weights = {name: value.clone() for name, value in weights.items() if value is not None}
        events = Path(case.directory) / "events.jsonl"
        seen.events = [json.loads(line) for line in events.read_text().splitlines()]
    return seen


def watched(
    planter: Planter, make: Callable[[nn.Module], torch.optim.Optimizer], model: nn.Module
) -> torch.optim.Optimizer:
    """The optimizer, in whose steps faults are raised too."""
    return planter.watch(make(model))
