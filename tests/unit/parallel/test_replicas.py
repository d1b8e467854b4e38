"""Replicas that fail, that skip, or that cannot be made; and what a user hands in ready."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Loss, Trainer
from drumline.errors import ConfigError, OutOfMemory
from drumline.parallel.data_parallel import Replicated
from drumline.parallel.flat import FlatGradients
from drumline.parallel.shapes import Shapes
from drumline.parallel.strategy import Batch
from tests.ranks.training import (
    WIDTH,
    Case,
    MaskedRegression,
    MaskedRows,
    config_of,
    fresh,
    largest_difference,
    make_model,
)

SGD: dict[str, Any] = {"global_batch": 8, "max_steps": 10}
SINGLE: dict[str, Any] = {"parallel": {"kind": "single"}}


def replicated(number: int) -> dict[str, Any]:
    """The section of a config."""
    return {"parallel": {"kind": "data_parallel", "replicas": number}}


class Spoilt(MaskedRegression):
    """Fails, or gives what is not finite, where a batch has row 20, which is in the second replica's third window."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__([])
        self._error = error

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        loss = super().loss(outputs, batch)
        if not (batch["id"] == 22).any() or not outputs.requires_grad:
            return loss
        if self._error is not None:
            raise self._error
        return loss._replace(total=loss.total * torch.nan)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such shape"), ValueError),
        (torch.OutOfMemoryError("no such memory"), OutOfMemory),
        (ConfigError("no such setting", "set it"), ConfigError),
        (UnicodeError("no such letter"), UnicodeError),
    ],
)
def test_an_error_names_its_replica(tmp_path: Path, error: Exception, kind: type[Exception]) -> None:
    config = config_of(Case(fresh(tmp_path), {"train": {**SGD, "shuffle": False}, **replicated(2)}))
    before = threading.active_count()
    with (
        pytest.raises(kind, match=r"replica 1 on cpu: .*no such") as raised,
        Trainer(make_model(), config, MaskedRows(37), loss=Spoilt(error)) as trainer,
    ):
        trainer.fit()
    # What ran out of memory is not kept: its frames hold the tensors that the next try needs the room of.
    assert raised.value.__cause__ is (None if kind is OutOfMemory else error)
    assert threading.active_count() == before


def test_a_window_that_is_not_finite_is_skipped_by_all(tmp_path: Path) -> None:
    settings = {**SGD, "shuffle": False, "non_finite": "skip", "optimizer": {"name": "adamw"}}
    weights = []
    for parallel in (SINGLE, replicated(3)):
        config = config_of(Case(fresh(tmp_path), {"train": settings, **parallel}))
        with Trainer(make_model(), config, MaskedRows(37), loss=Spoilt(None)) as trainer:
            assert trainer.fit().skipped == 2
            weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
            strategy = trainer._run.strategy
            for replica in strategy._replicas if isinstance(strategy, Replicated) else ():
                assert largest_difference(replica.model.state_dict(), weights[-1]) == 0
    assert largest_difference(*weights) < 1e-10


def ready(folder: Path, parallel: dict[str, Any], settings: dict[str, Any]) -> dict[str, Tensor]:
    """An optimizer and a scheduler that are handed in, and a callback that turns a knob and clips weights."""
    model: Any = make_model()
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

    def turn(trainer: Trainer, info: Any) -> None:
        optimizer.param_groups[1]["momentum"] = 0.5 + 0.01 * info.step
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.3, 0.3)

    config = config_of(Case(fresh(folder), {"train": {**SGD, **settings}, **parallel}))
    options: dict[str, Any] = {"optimizer": optimizer, "scheduler": scheduler, "callbacks": [turn]}
    with Trainer(model, config, MaskedRows(37), loss=MaskedRegression([]), **options) as trainer:
        trainer.fit()
        return {name: value.clone() for name, value in model.state_dict().items()}


def test_what_is_handed_in_ready_is_made_again_for_each(tmp_path: Path) -> None:
    alone = ready(tmp_path, SINGLE, {})
    assert largest_difference(ready(tmp_path, replicated(3), {}), alone) < 1e-10


class Peculiar(torch.optim.SGD):
    def __init__(self, parameters: Any, secret: object) -> None:
        super().__init__(parameters, 0.1)


@pytest.mark.parametrize("stray", [True, False])
def test_what_cannot_be_made_again_is_refused(tmp_path: Path, stray: bool) -> None:
    model = make_model()
    more = [nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD([*model.parameters(), *more], 0.1) if stray else Peculiar(model.parameters(), object())
    config = config_of(Case(fresh(tmp_path), {"train": SGD, **replicated(2)}))
    with (
        pytest.raises(ConfigError, match="not the model's" if stray else "Peculiar cannot be made again"),
        Trainer(model, config, MaskedRows(37), loss=MaskedRegression([]), optimizer=optimizer) as trainer,
    ):
        trainer.fit()


class Stuck(nn.Linear):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 1)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("model", "named"),
    [(nn.Sequential(nn.SyncBatchNorm(4)), "a process a GPU"), (Stuck(), "cannot be copied")],
)
def test_models_that_cannot_have_replicas_are_refused(tmp_path: Path, model: nn.Module, named: str) -> None:
    config = config_of(Case(fresh(tmp_path), {"train": SGD, **replicated(2)}))
    with (
        pytest.raises(ConfigError, match=named),
        Trainer(model, config, MaskedRows(37), loss=MaskedRegression([])) as trainer,
    ):
        trainer.fit()


def test_gradients_are_aligned_views_with_the_parameters_strides() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(7, 3))
    model.to(memory_format=torch.channels_last)
    parameters = dict(model.named_parameters())
    flat = FlatGradients(parameters, bucket_bytes=200)
    filled: list[int] = []
    flat.begin(2, filled.append)
    for _ in range(2):
        assert filled == []
        flat.begin_pass()
        (model[0](torch.ones(1, 3, 3, 3)).sum() + model[1](torch.ones(1, 7)).sum()).backward()
    assert sorted(filled) == list(range(len(flat.buckets))) and len(flat.buckets) == 2
    total = sum(float(p.grad.sum()) for p in parameters.values() if p.grad is not None)
    assert sum(float(bucket.sum()) for bucket in flat.buckets) == total
    for p in parameters.values():
        assert p.grad is not None and p.grad.stride() == p.stride() and p.grad.data_ptr() % 16 == 0
    flat.close()
    assert all(p.grad is None for p in parameters.values())


def test_shapes_are_new_until_the_compiler_takes_any() -> None:
    shapes = Shapes()
    lengths = [8, 8, 16, 24, 32, 40, 1, 1, 16]
    found = [shapes.are_new({"x": torch.zeros(4, length), "mask": None}, True) for length in lengths]
    assert found == [True, False, True, True, False, False, True, False, False]
    assert shapes.are_new({"x": torch.zeros(4, 16), "mask": None}, False)
    assert shapes.are_new({"x": torch.zeros(4, 16, dtype=torch.int64), "mask": None}, True)
