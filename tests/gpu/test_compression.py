"""Compressed gradients on one GPU, through NCCL: the sums, in a stream of their own, without a host sync."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.config.parallel import DdpParallel
from drumline.launcher.world import World
from drumline.parallel.compute import Compute
from drumline.parallel.ddp import Ddp
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Alone
from drumline.parallel.strategy import MAIN, Learner, MicroBatch, Rates, Scale
from drumline.tasks.function import FunctionTask

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

WIDTH, ROWS, WARM_UP = 256, 32, 4


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """A world of one that sends all the same."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, device_id=device)
    yield Groups(World(), device, Alone(), dist.group.WORLD, owns_default=False)
    dist.destroy_process_group()


def weights_after(groups: Groups, options: dict[str, Any], *, exponent: int = 0) -> list[Tensor]:
    """Weights after some windows, the last of which torch watches for syncs; exponent: of two, on the loss alone."""
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))
    data = torch.randn(12, ROWS, WIDTH, generator=torch.Generator().manual_seed(5)).cuda()
    strategy = Ddp(groups, DdpParallel(bucket_mb=0.3, **options), Compute("fp32"))
    task = FunctionTask(lambda model, x: model(x).square().mean() * 2.0**exponent)
    rates = Rates(lambda step: 1.0, 100, None, "update", True)
    rate = 2.0 ** (3 - exponent)
    strategy.setup(model, {MAIN: Learner(task, lambda m: torch.optim.SGD(m.parameters(), rate, fused=True), rates)})
    try:
        for number, rows in enumerate(data):
            if number == WARM_UP:
                torch.cuda.set_sync_debug_mode("error")
            strategy.window(MAIN, [MicroBatch(rows, ROWS, ROWS)], Scale(1 / ROWS, 1 / ROWS))
            strategy.step(MAIN, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    weights = [p.detach().clone() for p in model.parameters()]
    strategy.close()
    return weights


def distance(some: list[Tensor], others: list[Tensor]) -> float:
    return float(torch.stack([(a - b).abs().max() for a, b in zip(some, others, strict=True)]).max())


@pytest.mark.parametrize(("compression", "bits"), [("bf16", 8), ("fp16", 11)])
def test_half_precision_is_close_and_not_exact(groups: Groups, compression: str, bits: int) -> None:
    exact = weights_after(groups, {})
    torch.manual_seed(3)
    untrained = [p.detach().cuda() for _ in range(4) for p in nn.Linear(WIDTH, WIDTH).parameters()]
    moved = distance(exact, untrained)
    assert 0 < distance(weights_after(groups, {"compression": compression}), exact) < 4 * 2.0**-bits * moved


@pytest.mark.parametrize("exponent", [-40, 40])
def test_gradients_beyond_float16s_range_travel_in_it(groups: Groups, exponent: int) -> None:
    way = {"compression": "fp16"}
    assert distance(weights_after(groups, way, exponent=exponent), weights_after(groups, way)) < 1e-6


def test_power_sgd_of_full_rank_is_exact_and_of_a_lower_one_near(groups: Groups) -> None:
    exact = weights_after(groups, {})
    low = weights_after(groups, {"compression": "power_sgd", "power_sgd_rank": 32, "power_sgd_start": 1})
    lower = weights_after(groups, {"compression": "power_sgd", "power_sgd_rank": 2, "power_sgd_start": 1})
    # A gradient of 32 rows has rank 32 at most; products in TF32 or plain float32 round it.
    assert 0 < distance(low, exact) < 1e-3
    assert distance(low, exact) < distance(lower, exact)
