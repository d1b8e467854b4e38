"""One call that says how fast a model of one's own trains on all GPUs."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from drumline.bench.train import Lengths, bench_train
from drumline.config.parallel import DataParallel
from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.engine.trainer import Options
from drumline.parallel.groups import started_world

WARM_UP, STEPS = 5, 30
"""Updates that are left out, and updates that are timed unless the config says how many with `max_steps`."""


def benchmark_multi_gpu_performance(
    model: nn.Module, dataset: Any, config: TrainConfig | RunConfig, **options: Unpack[Options]
) -> dict[str, Any]:
    """Train a copy of the model for some updates, and return how long they took; the model stays as it is.

    dataset, config and options (`loss=` and the others) are Trainer's; without evaluation, checkpoint or screen, and
    nothing is left on the disk. Under a launcher all ranks call it; a lone process takes all visible GPUs, as
    data_parallel, where `parallel.kind` is auto. On a machine without GPU it measures the CPU.

    training_time: seconds of the timed updates (`updates`, after a warm-up), with samples_per_second over all GPUs;
    step_time, forward_time, backward_time, optimizer_time: medians in seconds of one update; gpu_utilization:
    `gpu_info` with the `count` of GPUs in use and their `name`, `memory_usage` with the peak in bytes by GPU. Raises
    what Trainer raises.
    """
    run_config = RunConfig(train=config) if isinstance(config, TrainConfig) else config
    lengths = Lengths(WARM_UP, run_config.train.max_steps or STEPS, profiled=0)
    with tempfile.TemporaryDirectory(prefix="drumline-benchmark-") as folder:
        update = {"run_dir": Path(folder) / "run", "parallel": spread_out(run_config)}
        chosen = run_config.model_copy(update=update)
        found = bench_train(copy.deepcopy(model), chosen, dataset, options, lengths)
    step, phases = found["step_s"], found["phases"]
    name = "process" if found["device"] == "cpu" else "gpu"
    used = len(found["memory"]) if name == "gpu" else 0
    return {
        "training_time": step["mean"] * step["count"],
        "samples_per_second": found["samples_per_s"],
        "updates": step["count"],
        "step_time": step["median"],
        "forward_time": phases["forward_s"],
        "backward_time": phases["backward_s"],
        "optimizer_time": phases["optimizer_s"],
        "gpu_utilization": {
            "gpu_info": {"count": used, "name": found["device"]},
            "memory_usage": {f"{name}_{i}": memory for i, memory in enumerate(found["memory"])},
        },
    }


def spread_out(config: RunConfig) -> Any:
    """The config's way to use several GPUs, or data_parallel where one process has them all and nothing is asked."""
    parallel, device = config.parallel, config.hardware.device
    alone = started_world().size == 1 and parallel.kind == "auto" and device != "cpu"
    if alone and torch.cuda.is_available() and torch.cuda.device_count() > 1:
        return DataParallel(timeout_s=parallel.timeout_s)
    return parallel
