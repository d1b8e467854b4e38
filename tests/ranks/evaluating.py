"""Runs that evaluate, of which memory runs out or a stop comes in the middle of an evaluation or a prediction."""

from __future__ import annotations

import json
import os
import signal
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Trainer
from drumline.errors import Interrupted
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model


@dataclass(frozen=True)
class EvaluationFault:
    """What happens in evaluation passes of one rank."""

    above: int | None = None
    """A pass of more rows than that finds no memory."""
    stop_at: int | None = None
    """A SIGTERM comes in the pass with this number, counted over the whole run from 1."""
    rank: int = 1


@dataclass
class Evaluated:
    """What one rank saw."""

    losses: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    """Rows of each training pass."""
    sizes: list[int] = field(default_factory=list)
    """Rows of each evaluation pass."""
    alive: list[bool] = field(default_factory=list)
    """Whether what a failed pass had made was still there when the next one began."""
    micro_batch: int | None = None
    evaluation_batch: int | None = None
    owes: bool = False
    ended: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    predictions: list[int] = field(default_factory=list)


class Faulty:
    """Raises the fault in the model's second layer, where a forward pass has made something already."""

    def __init__(self, model: nn.Module, fault: EvaluationFault | None, seen: Evaluated) -> None:
        self._seen = seen
        self._fault = fault if fault is not None and fault.rank == int(os.environ["RANK"]) else None
        self._passes = 0
        self._made: weakref.ref[Tensor] | None = None
        first, *_, last = model.children()
        first.register_forward_hook(self._note)
        last.register_forward_pre_hook(self._raise)

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        rows = len(inputs[0])
        if module.training:
            self._seen.trained.append(rows)
            return
        if self._made is not None:
            self._seen.alive.append(self._made() is not None)
            self._made = None
        self._seen.sizes.append(rows)

    def _raise(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if module.training or self._fault is None:
            return
        self._passes += 1
        if self._fault.above is not None and len(inputs[0]) > self._fault.above:
            self._made = weakref.ref(inputs[0])
            raise torch.OutOfMemoryError("CUDA out of memory. Planted")
        if self._passes == self._fault.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)


def run_with(
    case: Case,
    fault: EvaluationFault | None,
    make: Callable[[], nn.Module] = make_model,
    predicts: int = 0,
) -> Evaluated:
    """Train, or go on, on this rank; predictions of so many rows at the end."""
    seen, model = Evaluated(), make()
    Faulty(model, fault, seen)
    assert case.num_eval_rows is not None
    held_out, data = MaskedRows(case.num_eval_rows, case.lengths), MaskedRows(case.num_rows, case.lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drumline.engine.tries.LOOK_S", 0.0)
        with Trainer(model, config_of(case), data, loss=MaskedRegression([]), eval_data=held_out) as trainer:
            try:
                for info in trainer.steps():
                    if info.logged is not None:
                        seen.losses.append(info.logged["loss"])
                seen.ended = "done"
            except Interrupted as interrupted:
                seen.ended = interrupted.reason
            progress = trainer._run.progress
            seen.history, seen.owes = progress.history, progress.owes_evaluation
            seen.micro_batch, seen.evaluation_batch = progress.micro_batch, progress.evaluation_batch
            seen.weights = {name: value.clone() for name, value in model.state_dict().items()}
            if predicts:
                rows = MaskedRows(predicts)
                found = trainer.predict(rows, forward=lambda model, batch: (model(batch["x"]), batch["id"]))
                seen.predictions = [int(number) for _, number in found]
    lines = (Path(case.directory) / "events.jsonl").read_text().splitlines()
    seen.events = [json.loads(line) for line in lines]
    return seen
