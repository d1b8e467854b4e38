"""The gradient noise scale over ranks: out of the first micro-batch, or of a rank's whole part in one pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh

NUM_ROWS, BATCH, DIM = 60, 10, 3


class Rows(Dataset[Tensor]):
    """Row i is its own gradient."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        return 1 + torch.randn(DIM, dtype=torch.float64, generator=generator)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = model(batch).mean()
    return outputs


def train(directory: str, micro: int | str, log_every: int) -> list[float]:
    settings = {"global_batch": BATCH, "micro_batch": micro, "epochs": 1, "shuffle": False, "max_norm": 0.1}
    track = {"every": log_every, "console": False, "gradient_noise": True}
    config = config_of(Case(directory, {"train": settings, "track": track}))
    with Trainer(nn.Linear(DIM, 1, bias=False).double(), config, Rows(), loss=loss) as trainer:
        lines = [info.logged for info in trainer.steps() if info.logged is not None]
    return [line["gradient_noise_scale"] for line in lines]


def estimate(parts: list[list[int]], windows: range) -> float:
    """Trace over signal, both summed over the windows, each rank's part of a window (row numbers) for itself."""
    trace = signal = 0.0
    for window in windows:
        whole = torch.stack([Rows()[window * BATCH + i] for i in range(BATCH)]).mean(0).square().sum().item()
        for part in parts:
            small = torch.stack([Rows()[window * BATCH + i] for i in part]).mean(0).square().sum().item()
            size = len(part)
            signal += (BATCH * whole - size * small) / (BATCH - size)
            trace += (small - whole) / (1 / size - 1 / BATCH)
    return trace / signal


HALVES = [list(range(5)), list(range(5, 10))]


@pytest.mark.parametrize(
    ("world", "micro", "parts"),
    [
        (1, 5, [HALVES[0]]),
        (1, 3, [[0, 1, 2]]),
        (2, "auto", HALVES),
        (2, 3, [[0, 1, 2], [5, 6, 7]]),
        (3, "auto", [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]),
    ],
)
def test_it_is_what_a_direct_computation_gives(
    ranks: RankPool, tmp_path: Path, world: int, micro: int | str, parts: list[list[int]]
) -> None:
    expected = [estimate(parts, range(0, 3)), estimate(parts, range(3, 6))]
    for found in ranks.run(world, train, fresh(tmp_path), micro, 3):
        assert found == pytest.approx(expected, rel=1e-9)
