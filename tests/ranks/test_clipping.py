"""Accumulate, reduce, unscale once, take the true global norm, clip, step: the same update as one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Trainer
from tests.rank_pool import RankPool
from tests.ranks.training import (
    Case,
    MaskedRegression,
    MaskedRows,
    Record,
    config_of,
    fresh,
    largest_difference,
    make_model,
    train,
)

MAX_NORM = 0.05
TRAIN: dict[str, Any] = {"global_batch": 12, "max_steps": 6, "max_norm": MAX_NORM, "shuffle": False}


def partly_frozen() -> nn.Module:
    """Weights of the first layer and the bias of the last do not train."""
    model = make_model()
    model.get_parameter("0.weight").requires_grad_(False)
    model.get_parameter("2.bias").requires_grad_(False)
    return model


MODELS = {"all": make_model, "frozen": partly_frozen}


def train_several(cases: list[Case], model: str) -> list[Record]:
    return [train(case, MODELS[model]) for case in cases]


def train_by_hand(model: nn.Module) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, norms and weights of a plain loop over whole windows."""
    rows, task = MaskedRows(72), MaskedRegression([])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)
    losses, norms = [], []
    for first in range(0, 72, 12):
        batch = torch.utils.data.default_collate([rows[i] for i in range(first, first + 12)])
        loss = task.loss(task.forward(model, batch), batch).total / task.count(batch)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)))
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, dict(model.state_dict())


@pytest.mark.parametrize("model", ["all", "frozen"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_norm_and_update_are_those_of_a_plain_loop(ranks: RankPool, tmp_path: Path, world: int, model: str) -> None:
    losses, norms, weights = train_by_hand(MODELS[model]())
    assert min(norms) > MAX_NORM
    optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
    cases = [
        Case(
            str(tmp_path / f"{precision}-{micro}"),
            {"train": {**TRAIN, "precision": precision, "micro_batch": micro, "optimizer": optimizer}},
            num_rows=72,
        )
        for precision in ("fp32", "fp16")
        for micro in ("auto", 12 // world // 3 or 1)
    ]
    for records in ranks.run(world, train_several, cases, model):
        for record in records:
            torch.testing.assert_close(record.losses, losses, rtol=0, atol=1e-10)
            torch.testing.assert_close(record.norms, norms, rtol=0, atol=1e-10)
            assert largest_difference(record.weights, weights) < 1e-10


@pytest.mark.parametrize("model", ["all", "frozen"])
def test_the_scaler_changes_nothing(ranks: RankPool, tmp_path: Path, model: str) -> None:
    """fp16 leaves float64 layers as they are, so scaling by a power of two and back is exact."""
    plain, scaled = (
        Case(str(tmp_path / precision), {"train": {**TRAIN, "precision": precision}}, num_rows=72)
        for precision in ("fp32", "fp16")
    )
    for first, second in ranks.run(2, train_several, [plain, scaled], model):
        assert first.norms == second.norms
        assert first.losses == second.losses
        assert largest_difference(first.weights, second.weights) == 0


def in_float32() -> nn.Module:
    return make_model().float()


class Float32Rows(MaskedRows):
    """The same rows in float32."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        return {name: value.float() if value.is_floating_point() else value for name, value in row.items()}


def train_in_float32(directory: str, optimizer: dict[str, Any]) -> tuple[list[float], dict[str, Tensor]]:
    """Norms and weights: here the kernels of the fused optimizer divide the gradients."""
    model, norms = in_float32(), []
    settings = {**TRAIN, "optimizer": optimizer}
    case = Case(directory, {"train": settings}, num_rows=72)
    with Trainer(model, config_of(case), Float32Rows(72), loss=MaskedRegression([])) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            norms.append(info.logged["grad_norm"])
    return norms, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_kernels_clip_as_a_plain_loop_does(ranks: RankPool, tmp_path: Path, name: str) -> None:
    model, rows, task = in_float32(), Float32Rows(72), MaskedRegression([])
    made: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if name == "adamw":
        made = torch.optim.AdamW(model.parameters(), 0.05, betas=(0.9, 0.95), weight_decay=0.0)
    norms = []
    for first in range(0, 72, 12):
        batch = torch.utils.data.default_collate([rows[i] for i in range(first, first + 12)])
        made.zero_grad()
        (task.loss(task.forward(model, batch), batch).total / task.count(batch)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        made.step()
    assert min(norms) > MAX_NORM
    optimizer = {"name": name, "momentum": 0.9, "weight_decay": 0.0}
    for world in (1, 2):
        found = ranks.run(world, train_in_float32, fresh(tmp_path), optimizer)
        for theirs, weights in found:
            torch.testing.assert_close(theirs, norms, rtol=1e-5, atol=0)
            assert largest_difference(weights, dict(model.state_dict())) < 2e-6
            assert largest_difference(weights, found[0][1]) == 0
