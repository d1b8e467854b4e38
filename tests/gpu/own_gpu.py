"""What the ranks of test_own_gpu.py run; a module of its own, so that they can import it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml

from tests.ranks.training import Case, train


def processes_by_gpu() -> dict[str, int]:
    """How many processes compute on each GPU of this machine, by UUID."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {
            str(pynvml.nvmlDeviceGetUUID(handle)): len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
            for handle in handles
        }
    finally:
        pynvml.nvmlShutdown()


def train_twice(directory: str, config: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """Train, go on from the checkpoint for two updates more, and count who computes on each GPU while all are there."""
    train(Case(directory, config))
    more = {**config, "train": {**config["train"], "max_steps": config["train"]["max_steps"] + 2}}
    record = train(Case(directory, more))
    meet(Path(directory), "trained")
    counts = processes_by_gpu()
    meet(Path(directory), "counted")
    return counts, record.steps


def meet(folder: Path, what: str) -> None:
    """Wait until every rank has come here: the trainer's groups are closed by now."""
    (folder / f"{what}_{os.environ['RANK']}").touch()
    limit = time.monotonic() + 60
    while len(list(folder.glob(f"{what}_*"))) < int(os.environ["WORLD_SIZE"]):
        assert time.monotonic() < limit
        time.sleep(0.05)
