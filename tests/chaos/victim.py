"""The run that chaos.py disturbs: `drumline launch ... victim.py FOLDER KIND STEPS`.

Everything that a resume could get wrong is in it: AdamW's moments, an average of the weights, a schedule, BatchNorm's
buffers, dropout, noise drawn in the loader process from three generators, an epoch that ends in a shorter window.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import RunConfig, Trainer

WIDTH, HIDDEN, CLASSES = 16, 2048, 24
NUM_ROWS, GLOBAL_BATCH = 250, 12
EPOCH = -(-NUM_ROWS // GLOBAL_BATCH)
"""Updates of an epoch."""
SAVE_EVERY, EVALUATE_EVERY = 5, 20
HANG_TIMEOUT_S = 20.0
SMALL_FILES_BYTES = 400_000
"""On a full disk: room for the lines that a run appends, none for a checkpoint (over a megabyte, or half of it)."""
FULL, EVALUATING, FSYNC_S = "full", "evaluating", "CHAOS_FSYNC_S"


class Rows(Dataset[dict[str, Tensor]]):
    """A class by the sign of a few sums, from features with noise of Python's, numpy's and torch's streams."""

    def __init__(self, num_rows: int, first: int = 0) -> None:
        self._num_rows, self._first = num_rows, first

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(self._first + index))
        y = x[:8].abs().argmax() + 8 * (x[8] > 0) + 8 * (x[9] > 0)
        x = x + 0.1 * torch.randn(WIDTH) + 0.1 * random.gauss(0, 1) + 0.1 * float(np.random.standard_normal())
        return {"x": x, "y": y}


class Network(nn.Module):
    """Marks the folder while it is evaluated, which takes a while, so that a kill can be aimed at it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(HIDDEN, CLASSES)
        )
        self._mark = folder / EVALUATING

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of x, [rows, WIDTH]."""
        if not self.training:
            self._mark.touch()
            time.sleep(0.005)
        scores: Tensor = self.layers(x)
        return scores


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy, a mean over rows."""
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def config(folder: Path, kind: str, steps: int) -> RunConfig:
    """Saves often, evaluates often, logs each update."""
    parallel: dict[str, Any] = {"kind": kind, "timeout_s": 60}
    if kind == "fsdp":
        parallel["min_params"] = 1000
    return RunConfig.model_validate(
        {
            "run_dir": folder / "run",
            "seed": 3,
            "train": {
                "global_batch": GLOBAL_BATCH,
                "max_steps": steps,
                "lr": 0.002,
                "schedule": {"name": "cosine", "warmup_steps": 10},
                "averaging": {"kind": "ema", "decay": 0.9},
            },
            "loader": {"num_workers": 1},
            "parallel": parallel,
            "evaluate": {"every": EVALUATE_EVERY},
            "checkpoint": {"every": SAVE_EVERY, "keep": 3},
            "track": {"every": 1, "console": False},
            "hardware": {"device": "cpu"},
            "faults": {"hang_timeout_s": HANG_TIMEOUT_S},
        }
    )


class Disk:
    """A disk that is slow, or full while the folder says so; in this process only."""

    def __init__(self, folder: Path) -> None:
        self._full = folder / FULL
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._fsync, self._delay_s = os.fsync, float(os.environ.get(FSYNC_S, "0"))
        os.fsync = self.fsync

    def fsync(self, fd: Any) -> None:
        """As os.fsync, later."""
        time.sleep(self._delay_s)
        self._fsync(fd)

    def look(self) -> None:
        """Take over whether it is full."""
        limit = SMALL_FILES_BYTES if self._full.exists() else self._limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, self._limits[1]))


def main(folder: Path, kind: str, steps: int) -> None:
    """Train, or go on."""
    disk = Disk(folder)

    def after_update(trainer: Trainer, info: Any) -> None:
        disk.look()
        (folder / EVALUATING).unlink(missing_ok=True)

    torch.manual_seed(1)
    held_out = Rows(70, first=10_000)
    with Trainer(
        Network(folder), config(folder, kind, steps), Rows(NUM_ROWS), loss=loss, eval_data=held_out,
        callbacks=[after_update],
    ) as trainer:  # fmt: skip
        trainer.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
