"""The multi-GPU training of an ads service: its configuration, trainers, monitor, fine-tuning and routes.

Where its document names a thing and leaves it open: the loss is the model's own where batches are mappings (a Hugging
Face model), else cross-entropy of pairs; the optimizer is AdamW at LEARNING_RATE; gradients are clipped to norm 1; GPUs
are named by CUDA's index in this process, or by UUID. A machine without GPU trains on its CPU.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from drumline.adapters.epoch_trainer import EpochTrainer
from drumline.config.load import config_from_mapping
from drumline.errors import ConfigError, DrumlineError, LaunchError
from drumline.hardware.inventory import detect
from drumline.hardware.selection import select
from drumline.jobs import defaults, gpu_stats
from drumline.jobs.defaults import GPUConfig
from drumline.jobs.finetuning import FineTuningService
from drumline.jobs.finetuning_records import FineTuned
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.sessions import LOOK_S
from drumline.launcher.functions import launch
from drumline.launcher.spec import MARK
from drumline.launcher.world import World, detect_world
from drumline.monitor import contexts, gpu_monitor
from drumline.monitor.contexts import performance_context
from drumline.rundir import write_atomic

if TYPE_CHECKING:
    from fastapi import APIRouter
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from drumline.config.schema import RunConfig

    router: APIRouter

__all__ = [
    "DataParallelTrainer",
    "DistributedDataParallelTrainer",
    "GPUConfig",
    "GPUMonitor",
    "MultiGPUTrainingManager",
    "OptimizedFineTuningService",
    "gpu_monitoring_context",
    "launch_distributed_training",
    "performance_context",
    "router",
]

logger = logging.getLogger("drumline")

LEARNING_RATE = 5e-5
"""Of the optimizer that is made where none is given: the one that the document fine-tunes with."""
MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
"""Where ranks meet that no launcher has started, unless the environment says it: torch's own choice."""


def __getattr__(name: str) -> Any:
    """The service's router, which needs FastAPI, when it is first used."""
    if name == "router":
        from drumline.service import router

        return router
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run_config(config: GPUConfig, kind: str) -> RunConfig:
    """What drumline calls it, for one of its kinds of parallelism. Raises HardwareError for a GPU that is not there.

    A machine without GPU takes its CPU, whatever GPUs are named: the log says so.
    """
    gpus = detect().gpus
    settings = {"parallel.kind": kind, **defaults.settings_from(config, (), has_gpus=bool(gpus))}
    if gpus and config.gpu_ids:
        names = config.gpu_ids[:1] if kind == "single" else config.gpu_ids
        settings["hardware.gpus"] = [gpu.uuid for gpu in gpu_monitor.GPUMonitor(names).gpus]
    if gpus and kind == "ddp":
        settings["parallel.sync_batch_norm"] = config.sync_batch_norm
    for note in () if gpus else defaults.notes_on(config, config.model_fields_set - {"sync_batch_norm"}, {}):
        logger.warning("%s", note)
    return config_from_mapping({}, "GPUConfig", as_overrides(settings))


class DataParallelTrainer:
    """Trains on the GPUs of this process, an epoch a call, with the numbers of one GPU.

    An update is so many samples a GPU as the loader's batches have, times gradient_accumulation_steps; setup_dataloader
    makes batches of batch_size_per_gpu unless it is told another size.
    """

    def __init__(self, gpu_config: GPUConfig | None = None) -> None:
        self.gpu_config = GPUConfig() if gpu_config is None else gpu_config
        self.world: World | None = None
        """This process's place; None: as its launcher says."""
        self._loss_fn: Callable[[Any, Any], Any] | None = None
        self._epochs: EpochTrainer | None = None
        self._dataloader: Any = None
        # One thread for all epochs: which GPU is the current one is a matter of each thread.
        self._thread: ThreadPoolExecutor | None = None

    @property
    def kind(self) -> str:
        """What drumline calls it."""
        return "data_parallel" if self.gpu_config.use_multi_gpu else "single"

    def setup_model(
        self, model: nn.Module, optimizer: Optimizer | None = None, loss_fn: Callable[[Any, Any], Any] | None = None
    ) -> nn.Module:
        """Take the model; returned is the bare model. loss_fn: `loss_fn(outputs, targets)`, a mean."""
        import torch

        self.cleanup()
        self._loss_fn = loss_fn
        own = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE) if optimizer is None else optimizer
        self._epochs = self._made(model, own, None)
        return model

    def setup_dataloader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        """A loader of the data set, shuffled anew each epoch; options: as DataLoader takes them.

        Each sample comes once an epoch, whatever the number of GPUs or processes: the trainer shares them out.
        """
        from torch.utils.data import DataLoader, IterableDataset

        usual = {"batch_size": self.gpu_config.batch_size_per_gpu, "shuffle": not isinstance(dataset, IterableDataset)}
        return DataLoader(dataset, **(usual | options))

    async def train_epoch(self, dataloader: Any, epoch: int) -> dict[str, Any]:
        """Train one epoch on a thread: epoch, its mean loss, samples, updates and seconds.

        Where the awaiting task is cancelled, training stops after the update at hand.
        """
        epochs = self._ready
        if dataloader is not self._dataloader:
            epochs.close()
            self._dataloader = dataloader
            self._epochs = epochs = self._made(epochs.model, epochs.optimizer, dataloader, seed=epoch)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "drumline-train")
        trainer, work = epochs.trainer, asyncio.get_running_loop().run_in_executor(self._thread, epochs.train)
        try:
            return {"epoch": epoch, **await asyncio.shield(work)}
        except asyncio.CancelledError:
            trainer.stop("its task was cancelled")
            await asyncio.wait([work])
            raise

    def save_checkpoint(self, path: str | Path, epoch: int = 0) -> Path:
        """Write epoch, model_state_dict and optimizer_state_dict, whole or not at all; one rank does it."""
        return self._ready.save(path, epoch)

    def load_checkpoint(self, path: str | Path) -> int:
        """Go on with such a file; returns its epoch."""
        return int(self._ready.load(path)["epoch"])

    def cleanup(self) -> None:
        """Give back devices, threads and files; the model stays, and another epoch may follow."""
        if self._epochs is not None:
            self._epochs.close()
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = None

    @property
    def _ready(self) -> EpochTrainer:
        if self._epochs is None:
            raise ConfigError(f"{type(self).__name__} has no model yet", "call setup_model first")
        return self._epochs

    def _made(self, model: nn.Module, optimizer: Optimizer, data: Any, seed: int = 0) -> EpochTrainer:
        """seed: another order for another loader."""
        size = getattr(data, "batch_size", None) or self.gpu_config.batch_size_per_gpu
        gpu_config = self.gpu_config.model_copy(update={"batch_size_per_gpu": size})
        config = run_config(gpu_config, self.kind).model_copy(update={"seed": seed})
        return EpochTrainer(model, config, data, loss=self._loss_fn, optimizer=optimizer, world=self.world)


class DistributedDataParallelTrainer(DataParallelTrainer):
    """As DataParallelTrainer, in each process of a world; batch_size_per_gpu counts in each."""

    @property
    def kind(self) -> str:
        """What drumline calls it."""
        return "ddp"

    def setup_distributed(self, rank: int, world_size: int) -> None:
        """Say which process this is, before setup_model; the ranks meet at the first epoch.

        Of processes that no launcher has started all are on this machine, unless LOCAL_RANK and LOCAL_WORLD_SIZE say
        other, and meet at MASTER_ADDR and MASTER_PORT. Raises ConfigError where a launcher says another place.
        """
        from drumline.parallel.groups import started_world

        place = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
        started = started_world()
        if started.source == "python":
            started = detect_world({**MASTER, **local, **os.environ, **place})
        if (started.rank, started.size) != (rank, world_size):
            what = f"setup_distributed(rank={rank}, world_size={world_size}), and "
            what += f"{started.source} says rank {started.rank} of {started.size}"
            raise ConfigError(what, "pass on the rank and the world size that this process was started with")
        self.world = started


class MultiGPUTrainingManager:
    """Finds out what the machine has, and makes trainers for it."""

    def __init__(self, gpu_config: GPUConfig | None = None) -> None:
        self.gpu_config = gpu_config
        self._trainers: list[DataParallelTrainer] = []

    def detect_gpu_configuration(self) -> GPUConfig:
        """All GPUs that are healthy and free, with nccl; without any GPU gloo, for the CPU.

        Raises HardwareError, with each GPU's reason, where there are GPUs and none can be used.
        """
        gpus = detect().gpus
        # To one of several processes the others of its launch look like strangers on their GPUs.
        alone = detect_world().size == 1
        usable = select().uuids if gpus and alone else tuple(gpu.uuid for gpu in gpus)
        ids = [index for index, gpu in enumerate(gpus) if gpu.uuid in usable]
        self.gpu_config = GPUConfig(use_multi_gpu=len(ids) > 1, gpu_ids=ids, backend="nccl" if ids else "gloo")
        return self.gpu_config

    def setup_trainer(self, distributed: bool = False) -> DataParallelTrainer:
        """A trainer for the configuration, which is detected where there is none yet."""
        kind = DistributedDataParallelTrainer if distributed else DataParallelTrainer
        self._trainers.append(kind(self.gpu_config or self.detect_gpu_configuration()))
        return self._trainers[-1]

    def get_gpu_stats(self) -> dict[str, Any]:
        """available_gpus, gpu_info (a record a GPU), and source: who tells, or why there is none."""
        return gpu_stats.gpu_stats()

    def cleanup(self) -> None:
        """Give back what its trainers hold."""
        for trainer in self._trainers:
            trainer.cleanup()
        self._trainers.clear()


class GPUMonitor:
    """Looks at the GPUs that the configuration names; none named: at all of this process.

    Those that the machine does not have are told in the log, and not looked at.
    """

    def __init__(self, gpu_config: GPUConfig | None = None) -> None:
        self.gpu_config = GPUConfig() if gpu_config is None else gpu_config
        self._monitor = gpu_monitor.GPUMonitor(present(self.gpu_config.gpu_ids) if self.gpu_config.gpu_ids else None)

    def get_gpu_info(self) -> list[dict[str, Any]]:
        """A record a GPU: id, name, uuid, memory, temperature, power and more; None where nobody says."""
        watched = {gpu.uuid for gpu in self._monitor.gpus}
        return [record for record in gpu_stats.gpu_stats()["gpu_info"] if record["uuid"] in watched]

    def get_available_gpus(self) -> list[int]:
        """Those that are healthy and that nobody else uses, by id."""
        return self._monitor.get_available_gpus()

    def monitor_gpu_usage(self, gpu_id: int | str = 0) -> dict[str, Any]:
        """memory_utilization (memory in use) and gpu_utilization in percent, NaN where nobody says; and its sizes.

        Raises HardwareError where there is no such GPU.
        """
        info = self._monitor.monitor_gpu_usage(gpu_id)
        used, total, busy = info.sample.memory_used_bytes, info.gpu.memory_bytes, info.sample.utilization
        return {
            "gpu_id": info.index,
            "name": info.gpu.name,
            "memory_utilization": math.nan if used is None or not total else 100 * used / total,
            "gpu_utilization": math.nan if busy is None else 100 * busy,
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "temperature_c": info.sample.temperature_c,
            "power_w": info.sample.power_w,
        }

    def log_gpu_stats(self, label: str = "") -> None:
        """A line a GPU into the log."""
        self._monitor.log_gpu_stats(label)


def present(gpu_ids: Sequence[int | str]) -> list[int | str]:
    """Those of these GPUs that this process has; of the others the log says that they are not there."""
    known = {name for info in gpu_monitor.get_gpu_info() for name in (str(info.index), info.gpu.uuid)}
    absent = [str(name) for name in gpu_ids if str(name) not in known]
    if absent:
        logger.warning("GPU %s is not there, and is not watched; %s", ", ".join(absent), detect().gpu_source)
    return [name for name in gpu_ids if str(name) in known]


@contextmanager
def gpu_monitoring_context(gpu_ids: Sequence[int | str] | None = None) -> Iterator[gpu_monitor.GPUMonitor]:
    """Watches these GPUs (none named: all) during a block; the log then has a line a GPU.

    Those that are not there are told in the log: the work inside goes on all the same, as on a machine without GPU.
    """
    with contexts.gpu_monitoring_context(present(gpu_ids) if gpu_ids else None) as monitor:
        yield monitor


class OptimizedFineTuningService(FineTuningService):
    """FineTuningService under its name.

    In a launch_distributed_training all ranks call it, and get the result of one training, which rank 0 starts.
    """

    _calls: ClassVar[Iterator[int]] = itertools.count()

    async def finetune_model(self, *args: Any, **settings: Any) -> FineTuned:
        """As FineTuningService.finetune_model; the methods for each way of spreading come here too."""
        world = detect_world()
        if world.size == 1:
            return await super().finetune_model(*args, **settings)
        told = self._private("launches") / f"{os.environ.get(MARK, world.run_id)}-{next(self._calls)}"
        if world.rank == 0:
            result: FineTuned | DrumlineError
            try:
                result = await super().finetune_model(*args, **settings)
            except DrumlineError as error:  # the other ranks raise it too
                result = error
            except BaseException as error:  # they must not wait for it
                why = f"rank 0 could not train: {type(error).__name__}: {error}"
                write_atomic(told, pickle.dumps(LaunchError(why, "see what rank 0 raised")))
                raise
            write_atomic(told, pickle.dumps(result))
        began = psutil.Process().create_time()
        while not (told.exists() and told.stat().st_mtime >= began):  # a launch of before may have had the same name
            await asyncio.sleep(LOOK_S)
        found = pickle.loads(told.read_bytes())
        if isinstance(found, DrumlineError):
            raise found
        return found  # type: ignore[no-any-return]


def launch_distributed_training(*, world_size: int, train_func: Callable[..., Any], **kwargs: Any) -> list[Any]:
    """Run train_func(rank, world_size, **kwargs) in one process a GPU (world_size of them); each rank's result.

    A coroutine function is awaited. train_func is importable: a script that defines it calls this under
    `if __name__ == "__main__":`.
    """
    return launch(call_on_rank, (train_func, world_size, kwargs), num_processes=world_size)


def call_on_rank(train_func: Callable[..., Any], world_size: int, kwargs: dict[str, Any]) -> Any:
    """What each rank of launch_distributed_training does."""
    found = train_func(detect_world().rank, world_size, **kwargs)
    return asyncio.run(found) if inspect.iscoroutine(found) else found
