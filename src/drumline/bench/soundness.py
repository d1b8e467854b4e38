"""Whether ranks that train together are in order, and how fast they are; every rank runs this."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from drumline.bench.comm import bench_comm
from drumline.bench.train import Lengths, MeasuredTrainer, bench_train
from drumline.config.schema import RunConfig
from drumline.engine.callbacks import Callback
from drumline.engine.records import StepInfo
from drumline.engine.trainer import Options, Trainer
from drumline.launcher.world import detect_world
from drumline.parallel.positions import shown_by_torch


class Witness(Callback):
    """Asks every rank, after the first update, on which device it is and what its parameters are."""

    def __init__(self) -> None:
        self.ranks: list[dict[str, Any]] = []
        """By rank: `device`, a GPU's UUID or a process; `parameters`, a checksum; `moved`, by the update."""

    def on_start(self, trainer: Trainer) -> None:
        """Before the first update."""
        self._before = checksum_of(trainer.model)

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        """After each update; the first is enough."""
        if self.ranks:
            return
        assert isinstance(trainer, MeasuredTrainer)
        after = checksum_of(trainer.model)
        mine = {"device": device_of(trainer.device), "parameters": after, "moved": after != self._before}
        self.ranks = list(trainer.gather(mine))


def bench_soundness(
    model: nn.Module, config: RunConfig, train: Any, options: Options, request: Mapping[str, Any]
) -> dict[str, Any]:
    """What `bench_train` returns, with `ranks` as Witness has them, and `comm` of `bench_comm`; None for one rank.

    request: `bytes` and `samples` of the collectives, `warm_up` and `steps`, updates. The model must be whole on each
    rank, as under ddp.
    """
    alone = detect_world().size == 1
    comm = None if alone else bench_comm(config, [request["bytes"]], request["samples"])
    witness = Witness()
    with_witness: Any = {**options, "callbacks": [*options.get("callbacks", ()), witness]}
    lengths = Lengths(request["warm_up"], request["steps"], phases=0, profiled=0)
    result = bench_train(model, config, train, with_witness, lengths)
    return {**result, "ranks": witness.ranks, "comm": comm}


def checksum_of(model: nn.Module) -> str:
    """A checksum of all parameters' names and bits."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        found.update(name.encode())
        found.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def device_of(device: torch.device) -> str:
    """The UUID of a GPU; on the CPU the process."""
    return shown_by_torch()[device.index or 0] if device.type == "cuda" else f"process {os.getpid()}"
