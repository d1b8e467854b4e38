"""Memory that does run out: a global batch that cannot fit at the given micro-batch trains as one with less at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer

pytestmark = pytest.mark.gpu

WIDTH, HIDDEN, BATCH = 256, 32768, 4096


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1))


def error(model: nn.Module, batch: list[Tensor]) -> Tensor:
    loss: Tensor = (model(batch[0]) - batch[0].mean(1, keepdim=True)).square().mean()
    return loss


def trainer_of(directory: Path, micro_batch: int, steps: int, room_bytes: int, **out_of_memory: Any) -> Trainer:
    """A run that may use so many bytes."""
    total = torch.cuda.get_device_properties(0).total_memory
    config = RunConfig.model_validate(
        {
            "run_dir": str(directory),
            "train": {
                "global_batch": BATCH,
                "micro_batch": micro_batch,
                "max_steps": steps,
                "precision": "fp32",
                "lr": 1e-3,
                "out_of_memory": out_of_memory,
            },
            "hardware": {"memory_fraction": room_bytes / total},
            "checkpoint": {"at_end": False},
            "track": {"every": 1, "console": False},
            "loader": {"num_workers": 0},
            "monitor": {"record": False},
        }
    )
    generator = torch.Generator().manual_seed(0)
    rows = TensorDataset(torch.randn(2 * BATCH, WIDTH, generator=generator))
    return Trainer(make_model(), config, rows, loss=error)


def losses_of(trainer: Trainer) -> list[float]:
    found = []
    for info in trainer.steps():
        assert info.logged is not None
        found.append(info.logged["loss"])
    return found


def test_a_batch_that_does_not_fit_trains_like_one_that_is_cut_by_hand(tmp_path: Path) -> None:
    room = torch.cuda.memory_allocated() + (1 << 30)  # two activations of 4096 x 32768 floats alone fill it
    try:
        with trainer_of(tmp_path / "hand", 512, 6, room) as by_hand:
            expected = losses_of(by_hand)
            assert by_hand._run.groups.side.generation == 0
        with trainer_of(tmp_path / "found", BATCH, 6, room) as found:
            losses = losses_of(found)
            assert found._run.groups.side.generation > 0
            assert found._run.progress.micro_batch in (512, 1024, 2048)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)


def test_memory_is_flat_over_twenty_recoveries(tmp_path: Path) -> None:
    held: list[int] = []
    room = torch.cuda.memory_allocated() + (1 << 30)
    try:
        with trainer_of(tmp_path / "run", BATCH, 60, room, grow_after=1) as trainer:
            for _ in trainer.steps():
                if trainer._run.groups.side.generation > len(held):
                    held.append(torch.cuda.memory_allocated())
            assert trainer._run.groups.side.generation >= 20
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    window = BATCH * WIDTH * 4  # bytes; the next one is on its way, but not at an epoch's end
    assert max(held[3:]) - min(held[3:]) < 2 * window
