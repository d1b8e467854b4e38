"""A run of two ranks that hangs after its second update: `python hanging.py HOW DIRECTORY`, as elastic starts it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drumline import StepInfo, Trainer
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model

LIMIT_S = 6.0
"""faults.hang_timeout_s; half of it counts, since there are updates before."""
RANK = int(os.environ.get("RANK", "0"))


class Rows(MaskedRows):
    """A row of rank 1 that is never read once training has begun."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if sys.argv[1] == "loader" and index == 36 and Path(sys.argv[2], "metrics.jsonl").exists():
            time.sleep(60)
        return super().__getitem__(index)


def hang(trainer: Trainer, info: StepInfo) -> None:
    """Fail to come on, in the way that was asked for."""
    how = sys.argv[1]
    if info.step != 2:
        return
    if how == "sleep" and RANK == 1:
        time.sleep(60)  # in a callback
    elif how == "native" and RANK == 1:
        dist.barrier()  # nobody else comes
    elif how == "mismatch":
        if RANK == 0:
            dist.all_reduce(torch.ones(4))
        else:
            dist.all_gather([torch.ones(7), torch.ones(7)], torch.ones(7))
    elif how in ("SIGSTOP", "SIGKILL") and RANK == 1:
        limit = time.monotonic() + 1
        while time.monotonic() < limit:  # seen here by two beats of its heart
            time.sleep(0.1)
        os.kill(os.getpid(), signal.Signals[how])


def main(directory: str) -> None:
    sections: dict[str, Any] = {
        "train": {"global_batch": 8, "epochs": 1, "shuffle": False},
        "faults": {"hang_timeout_s": LIMIT_S},
        "loader": {"num_workers": int(sys.argv[1] == "loader"), "prefetch_factor": 1},
    }
    loss = MaskedRegression([])
    with Trainer(make_model(), config_of(Case(directory, sections)), Rows(40), loss=loss, callbacks=[hang]) as trainer:
        trainer.fit()


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")  # by the first optimizer otherwise, which takes seconds of the limit
    main(sys.argv[2])
