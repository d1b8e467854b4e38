"""drumline's Trainer; its argument is the strategy: single, data_parallel, ddp or fsdp."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from task import BETAS, LR, MAX_NORM, WEIGHT_DECAY, Meter, model_of, read_task, rows_of

from drumline import RunConfig, Trainer

task, num_devices, (kind,) = read_task()
cuda = task.device == "cuda"
parallel: dict[str, Any] = {"kind": kind}
if kind == "data_parallel" and not cuda:
    parallel["replicas"] = num_devices
# A sharded model is compiled by blocks, or the gathers could not overlap.
compiled = "blocks" if kind == "fsdp" else "whole"


def config(folder: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_dir": str(Path(folder) / "run"),
            "train": {
                "global_batch": task.micro_batch * num_devices,
                "max_steps": task.updates,
                "lr": LR,
                "max_norm": MAX_NORM,
                "precision": "bf16" if task.precision == "bf16" else "tf32" if cuda else "fp32",
                "compile": compiled if task.compile else "none",
                "shuffle": False,
                "schedule": {"name": "constant"},
                "optimizer": {"betas": BETAS, "weight_decay": WEIGHT_DECAY, "decay_all": True},
            },
            "parallel": parallel,
            "loader": {"num_workers": task.workers * (num_devices if kind == "data_parallel" else 1)},
            "checkpoint": {"at_end": False},
            "track": {"every": task.log_every, "console": False},
            "hardware": {"device": task.device},
        }
    )


meter = Meter(task, num_devices, f"drumline {kind}")
losses: list[float] = []
with (
    tempfile.TemporaryDirectory() as folder,
    Trainer(model_of(task), config(folder), rows_of(task)) as trainer,
):
    for info in trainer.steps():
        meter()
        if info.logged is not None:
            losses.append(info.logged["loss"])
    meter.finish("transformers", losses=(losses[0], losses[-1]))
