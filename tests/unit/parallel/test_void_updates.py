"""An update whose reduction was cut off is none: weights, state, counters, loss scale stay, and the host can tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drumline.parallel.precision import LossScale
from drumline.parallel.update import Update
from tests.unit.parallel.updates import assert_same, constant, new_parameters, set_gradients, snapshot


def made(parameters: list[nn.Parameter], *, fused: bool, skippable: bool, scaled: bool) -> Update:
    optimizer = torch.optim.AdamW(parameters, 0.1, fused=fused)
    return Update(optimizer, constant(skippable), LossScale(torch.device("cpu")) if scaled else None)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("skippable", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_nothing_is_done_where_the_reduction_was_not_whole(fused: bool, skippable: bool, scaled: bool) -> None:
    parameters = new_parameters()
    update = made(parameters, fused=fused, skippable=skippable, scaled=scaled)
    for seed in range(2):
        set_gradients(parameters, seed)
        assert float(update.apply(1.0, torch.tensor(True)).norm) > 0
    before, state = snapshot(update, parameters), update.state()
    completed, scale = state["completed"], state["loss_scale"]
    set_gradients(parameters, 2, times=float("inf"))
    outcome = update.apply(1.0, torch.tensor(False))
    assert (float(outcome.norm), float(outcome.applied)) == (-1.0, 0.0)
    update.take_back(1)
    assert_same(snapshot(update, parameters), before)
    assert (update.state()["completed"], update.state()["loss_scale"]) == (completed, scale)


def test_a_whole_reduction_changes_nothing_about_an_update() -> None:
    ends = []
    for whole in (None, torch.tensor(True)):
        parameters = new_parameters()
        update = made(parameters, fused=True, skippable=True, scaled=True)
        for seed in range(3):
            set_gradients(parameters, seed, times=float("nan") if seed == 1 else 1.0)
            update.apply(1.0, whole)
        ends.append((snapshot(update, parameters), update.state()["completed"], update.state()["loss_scale"]))
    assert_same(ends[0], ends[1])
    assert ends[0][1] == 2
