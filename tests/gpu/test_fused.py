"""FusedAdamW where a group is large enough to be updated by two launches at the same time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from drumline.engine.fused import SMALL, FusedAdamW

pytestmark = pytest.mark.gpu


def test_two_launches_at_once_give_what_one_gives() -> None:
    sizes = (SMALL // 2 + 3, SMALL // 2 + 5, 7, SMALL // 4 + 1)
    made: list[Any] = []
    for kind, more in ((FusedAdamW, {}), (torch.optim.AdamW, {"fused": True})):
        generator = torch.Generator("cuda").manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, device="cuda", generator=generator)) for size in sizes]
        made.append(kind(parameters, lr=0.01, weight_decay=0.1, **more))  # type: ignore[arg-type]
    for step in range(12):
        for optimizer in made:
            generator = torch.Generator("cuda").manual_seed(step)
            optimizer.found_inf = torch.full((), float(step == 5), device="cuda")
            optimizer.grad_scale = torch.full((), 8.0, device="cuda")
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.randn(p.shape, device="cuda", generator=generator)
            optimizer.step()
            optimizer.zero_grad()  # memory of gradients is used again while the step may still run
    (kept,) = made[0]._kept
    assert len(kept.halves) == 2
    for ours, theirs in zip(*(optimizer.param_groups[0]["params"] for optimizer in made), strict=True):
        assert torch.equal(ours, theirs)
        assert all(torch.equal(made[0].state[ours][name], value) for name, value in made[1].state[theirs].items())
