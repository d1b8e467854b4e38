"""The multi-GPU training of a video-clip system: its configuration, trainers, monitor and benchmark, over drumline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drumline.adapters.epoch_trainer import EpochTrainer, mean_loss
from drumline.errors import ConfigError, OutOfMemory
from drumline.hardware.inventory import detect
from drumline.hardware.selection import select_optimal_gpus

if TYPE_CHECKING:
    from torch import nn

    from drumline.config.schema import RunConfig
    from drumline.monitor.gpu_monitor import GpuInfo
    from drumline.parallel.optimized import OptimizedDataParallel

__all__ = [
    "DataParallelTrainer",
    "DistributedDataParallelTrainer",
    "MultiGPUConfig",
    "MultiGPUTrainingManager",
    "OptimizedDataParallel",
    "benchmark_multi_gpu_performance",
    "get_gpu_info",
    "launch_distributed_training",
    "select_optimal_gpus",
]

Strategy = Literal["auto", "single", "dataparallel", "distributed"]
DATAPARALLEL_GPUS = range(2, 5)
"""Numbers of GPUs for which `auto` takes dataparallel; more are distributed, fewer single."""


def __getattr__(name: str) -> Any:
    """OptimizedDataParallel, which needs torch, when it is first used."""
    if name == "OptimizedDataParallel":
        from drumline.parallel.optimized import OptimizedDataParallel

        return OptimizedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass
class MultiGPUConfig:
    """How to train; may be changed between epochs, and the next epoch goes by it.

    num_gpus: none for all; on a machine without GPU so many replicas or processes of the CPU. batch_size: samples an
    update under single and dataparallel, samples a GPU under distributed. backend: nccl counts where there are GPUs.
    master_addr and master_port are kept for code that names them: drumline finds a free port itself.
    """

    strategy: Strategy = "auto"
    num_gpus: int | None = None
    batch_size: int = 32
    num_workers: int = 4
    world_size: int | None = None
    backend: str = "nccl"
    master_addr: str = "localhost"
    master_port: str = "12355"

    def chosen(self, available: int) -> Strategy:
        """The strategy, where it is `auto` by the number of GPUs."""
        num_gpus = available if self.num_gpus is None else self.num_gpus
        if self.strategy != "auto":
            return self.strategy
        if num_gpus in DATAPARALLEL_GPUS:
            return "dataparallel"
        return "distributed" if num_gpus > max(DATAPARALLEL_GPUS) else "single"


def in_this_process(config: MultiGPUConfig) -> Strategy:
    """The strategy of a process that is running: one of several is distributed, and one alone is not."""
    from drumline.parallel.groups import started_world

    if config.strategy != "auto":
        return config.strategy
    if started_world().size > 1:
        return "distributed"
    chosen = config.chosen(len(detect().gpus))
    return "dataparallel" if chosen == "distributed" else chosen


def run_config(config: MultiGPUConfig, strategy: Strategy) -> RunConfig:
    """What drumline calls it. Raises ConfigError for a strategy that is none."""
    from drumline.config.load import config_from_mapping

    kinds = {"single": "single", "dataparallel": "data_parallel", "distributed": "ddp"}
    if strategy not in kinds:
        raise ConfigError(f"strategy {strategy!r} is none", f"say one of auto, {', '.join(kinds)}")
    parallel: dict[str, Any] = {"kind": kinds[strategy]}
    hardware: dict[str, Any] = {}
    if strategy == "dataparallel" and config.num_gpus is not None:
        if detect().gpus:
            hardware["count"] = config.num_gpus
        else:
            parallel["replicas"] = config.num_gpus
    if strategy == "distributed" and config.backend != "nccl":
        parallel["backend"] = config.backend
    batch = "batch_size_per_gpu" if strategy == "distributed" else "global_batch"
    settings = {
        "train": {batch: config.batch_size},
        "loader": {"num_workers": config.num_workers},
        "parallel": parallel,
        "evaluate": {"every": "end"},
        "hardware": hardware,
    }
    return config_from_mapping(settings, "MultiGPUConfig")


def get_gpu_info() -> dict[str, Any]:
    """The GPUs of this process: `count`, `devices`, and by id `memory` and `capabilities`; sizes in bytes."""
    from drumline.monitor.gpu_monitor import get_gpu_info as infos

    return described(infos())


def described(infos: Sequence[GpuInfo]) -> dict[str, Any]:
    """Pure: what get_gpu_info says of these GPUs."""
    devices = [
        {
            "id": info.index,
            "name": info.gpu.name,
            "memory_total": info.gpu.memory_bytes,
            "memory_allocated": 0 if info.torch is None else info.torch.allocated_bytes,
            "compute_capability": ".".join(map(str, info.gpu.compute_capability or ())) or None,
        }
        for info in infos
    ]
    memory = {info.index: {"total": info.gpu.memory_bytes, "used": info.sample.memory_used_bytes} for info in infos}
    capabilities = {device["id"]: device["compute_capability"] for device in devices}
    return {"count": len(devices), "devices": devices, "memory": memory, "capabilities": capabilities}


class DataParallelTrainer:
    """Trains on the GPUs of this process, an epoch a call.

    loss_fn: `loss_fn(outputs, targets)`, cross-entropy if not given. optimizer: AdamW at 1e-3 if not given. Batches are
    of the config's size, whatever the loaders have. The numbers are those of one GPU, whatever the number of GPUs.
    """

    strategy: Strategy = "dataparallel"

    def __init__(
        self,
        model: nn.Module,
        config: MultiGPUConfig,
        train_loader: Any,
        val_loader: Any = None,
        optimizer: Any = None,
        loss_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.config = config
        self._epochs = EpochTrainer(model, self._run_config(), train_loader, val_loader, loss_fn, optimizer)

    @property
    def model(self) -> nn.Module:
        """The bare model."""
        return self._epochs.model

    def _run_config(self) -> RunConfig:
        return run_config(self.config, self.strategy)

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """Train one epoch with the batch size that the config has now: train_loss, samples, updates, seconds.

        Raises RuntimeError with "out of memory" in it where not even one sample at a time fits. After an error the next
        epoch goes on with the model as it is.
        """
        try:
            found = self._epochs.train(self._run_config())
        except OutOfMemory as error:
            raise RuntimeError(f"out of memory: {error}") from error
        return {"epoch": epoch, "train_loss": found.pop("loss"), **found}

    def validate(self, epoch: int) -> dict[str, float]:
        """val_loss and the other metrics over the validation data, each sample once."""
        found = self._epochs.evaluate()
        return {"epoch": epoch, **{f"val_{name}": value for name, value in found.items()}}

    def save_checkpoint(self, epoch: int, path: str | Path) -> Path:
        """Write epoch, model_state_dict and optimizer_state_dict, whole or not at all."""
        return self._epochs.save(path, epoch)

    def load_checkpoint(self, path: str | Path) -> int:
        """Go on with such a file; returns its epoch."""
        return int(self._epochs.load(path)["epoch"])

    def cleanup(self) -> None:
        """Give back devices, processes and files; the model stays."""
        self._epochs.close()


class DistributedDataParallelTrainer(DataParallelTrainer):
    """As DataParallelTrainer in each process of a launched world; config.batch_size counts in each."""

    strategy: Strategy = "distributed"


class SingleTrainer(DataParallelTrainer):
    """As DataParallelTrainer, on one GPU or the CPU."""

    strategy: Strategy = "single"


TRAINERS: Mapping[Strategy, type[DataParallelTrainer]] = {
    each.strategy: each for each in (SingleTrainer, DataParallelTrainer, DistributedDataParallelTrainer)
}


class MultiGPUTrainingManager:
    """Chooses a trainer by the config and the GPUs of this process."""

    def __init__(self, config: MultiGPUConfig | None = None) -> None:
        self.config = MultiGPUConfig() if config is None else config

    def create_trainer(
        self, model: nn.Module, train_dataset: Any, val_dataset: Any = None, **options: Any
    ) -> DataParallelTrainer:
        """A trainer; options: its optimizer and loss_fn. Raises ConfigError for a strategy that is none."""
        strategy = in_this_process(self.config)
        if strategy not in TRAINERS:
            raise ConfigError(f"strategy {strategy!r} is none", f"say one of auto, {', '.join(TRAINERS)}")
        return TRAINERS[strategy](model, self.config, train_dataset, val_dataset, **options)


def benchmark_multi_gpu_performance(
    model: nn.Module, dataset: Any, config: MultiGPUConfig, loss_fn: Callable[[Any, Any], Any] | None = None
) -> dict[str, Any]:
    """training_time (s), samples_per_second and gpu_utilization of some updates of a copy of the model."""
    from drumline.bench.multi_gpu import benchmark_multi_gpu_performance as measure

    return measure(model, dataset, run_config(config, in_this_process(config)), loss=mean_loss(loss_fn))


def launch_distributed_training(
    rank: int,
    world_size: int,
    model_fn: Callable[[], nn.Module],
    dataset_fn: Callable[[], Any],
    config: MultiGPUConfig,
    epochs: int = 1,
) -> list[dict[str, float]]:
    """Train in one process a GPU (world_size of them), and return each epoch's metrics.

    One call starts all ranks, so `rank` is 0. model_fn and dataset_fn are importable; dataset_fn gives a training set,
    or a pair of training and validation set. Raises ConfigError for another rank.
    """
    from drumline.launcher.functions import launch

    if rank:
        raise ConfigError(
            f"rank {rank} of launch_distributed_training", "call it once, with rank=0: it starts all ranks"
        )
    return launch(train_on_rank, (model_fn, dataset_fn, config, epochs), num_processes=world_size)[0]


def train_on_rank(
    model_fn: Callable[[], nn.Module], dataset_fn: Callable[[], Any], config: MultiGPUConfig, epochs: int
) -> list[dict[str, float]]:
    """What each rank of launch_distributed_training does."""
    found = dataset_fn()
    train, held_out = found if isinstance(found, tuple) else (found, None)
    trainer = DistributedDataParallelTrainer(model_fn(), config, train, held_out)
    try:
        metrics = []
        for epoch in range(epochs):
            metrics.append(trainer.train_epoch(epoch))
            if held_out is not None:
                metrics[-1] |= trainer.validate(epoch)
        return metrics
    finally:
        trainer.cleanup()
