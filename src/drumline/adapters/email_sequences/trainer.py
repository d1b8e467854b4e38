"""The e-mail sequence system's trainer: a model of one's own on all GPUs, a training a call."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from drumline.adapters.email_sequences.monitoring import GPUMonitor
from drumline.adapters.email_sequences.processes import DistributedManager
from drumline.adapters.email_sequences.settings import (
    MultiGPUConfig,
    TrainingSettings,
    detect_training_mode,
    named,
    run_config,
)
from drumline.adapters.epoch_trainer import logged_once_an_epoch, mean_loss
from drumline.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from drumline.config.schema import RunConfig
    from drumline.engine.records import Result, StepInfo
    from drumline.engine.trainer import Trainer

logger = logging.getLogger("drumline")


@dataclass
class TrainingLogger:
    """Writes the metrics of a training into the log `drumline`, at level INFO."""

    experiment_name: str | None = None

    def log_batch(self, metrics: Mapping[str, Any]) -> None:
        """A line for a batch."""
        self._log("batch", metrics)

    def log_epoch(self, metrics: Mapping[str, Any]) -> None:
        """A line for an epoch."""
        self._log("epoch", metrics)

    def _log(self, what: str, metrics: Mapping[str, Any]) -> None:
        values = ", ".join(f"{name}={value}" for name, value in metrics.items())
        logger.info("%s: %s: %s", self.experiment_name or "training", what, values)


class DataParallelManager:
    """The replicas of one process, by a MultiGPUConfig."""

    def __init__(self, config: MultiGPUConfig) -> None:
        self.config = config

    def setup_model(self, model: nn.Module) -> nn.Module:
        """The model in OptimizedDataParallel, on device_ids (none: all GPUs); on the CPU so many replicas."""
        import torch

        from drumline.parallel.optimized import OptimizedDataParallel

        ids = self.config.device_ids
        if torch.cuda.is_available():
            return OptimizedDataParallel(model, ids)
        return OptimizedDataParallel(model, ["cpu"] * len(ids or (0,)))


class MultiGPUTrainer:
    """Trains a model on all GPUs that the config names; the numbers are those of one.

    Batches are pairs of inputs and targets, or mappings for a model that gives its own loss, as Hugging Face's do. Loss
    and optimizer are the settings': cross-entropy and AdamW at 1e-3 if nothing is said. Call initialize_training and
    setup_dataloader, then train.
    """

    def __init__(self, config: MultiGPUConfig | None = None, settings: TrainingSettings | None = None) -> None:
        self.config = MultiGPUConfig() if config is None else config
        self.settings = TrainingSettings() if settings is None else settings
        self.gpu_monitor = GPUMonitor()
        self.logger = TrainingLogger(self.settings.experiment_name)
        self.model: nn.Module | None = None
        self.train_loader: Any = None
        self._is_training = False
        self._epochs: list[dict[str, Any]] = []
        self._result: Result | None = None
        self._seconds = 0.0

    @property
    def training_mode(self) -> str:
        """single_gpu, data_parallel or distributed. Raises ConfigError for a mode that is none."""
        return detect_training_mode(self.config, len(self._gpus()))

    def _gpus(self) -> list[str]:
        from drumline.hardware.inventory import detect

        return [gpu.uuid for gpu in detect().gpus]

    def initialize_training(self, model: nn.Module) -> nn.Module:
        """Take the model that train() trains, and return it.

        Under data_parallel it comes back inside OptimizedDataParallel, so that a loop of one's own uses all GPUs too;
        else as it is, and train() moves it to its device.
        """
        named(self.config.device_ids, self._gpus())  # a GPU that is not there, before anything is moved
        self.model = model
        return DataParallelManager(self.config).setup_model(model) if self.training_mode == "data_parallel" else model

    def setup_dataloader(self, dataset: Any, batch_size: int, **kwargs: Any) -> DataLoader[Any]:
        """A DataLoader, shuffled unless said otherwise, that train() goes by and shares out over all ranks.

        batch_size: samples an update, under distributed samples an update and GPU. kwargs: torch's DataLoader's.
        """
        from torch.utils.data import DataLoader, IterableDataset

        shuffle = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
        loader = DataLoader(dataset, batch_size, **{**shuffle, **kwargs})
        self.train_loader = loader
        return loader

    async def train(self, train_loader: Any = None, val_loader: Any = None) -> dict[str, Any]:
        """Train max_epochs, or until early stopping, on another thread; the model then has its new weights.

        train_loader: setup_dataloader's if not given. All ranks of a launched world call it, in a process group of
        their own or none. Returns training_mode, epochs, updates, reason (done, early_stop), train_loss, val_loss and
        best_val_loss (None without val_loader), training_time (s), run_dir, and a `history` by epoch. A task that is
        cancelled ends the training after its update. Raises ConfigError without model or data, and what
        drumline.Trainer raises.
        """
        trainer = self._prepared(self.train_loader if train_loader is None else train_loader, val_loader)
        try:
            return await asyncio.to_thread(self._fit, trainer)
        except asyncio.CancelledError:
            trainer.stop("cancelled")
            raise

    def _prepared(self, loader: Any, val_loader: Any) -> Trainer:
        """A trainer that holds nothing yet."""
        from drumline.engine.trainer import Trainer

        settings = self.settings
        if settings.early_stopping_patience is not None and val_loader is None:
            what = f"early_stopping_patience={settings.early_stopping_patience}, and there is no validation data"
            raise ConfigError(what, "give val_loader, or leave early_stopping_patience out")
        model, config = self.of_run(loader)
        world = DistributedManager(self.config).world() if self.training_mode == "distributed" else None
        checkpoint = config.checkpoint
        if settings.experiment_name is not None:
            checkpoint = checkpoint.model_copy(update={"every": "epoch"})
        config = config.model_copy(update={"track": logged_once_an_epoch(config), "checkpoint": checkpoint})
        options: dict[str, Any] = {"loss": mean_loss(settings.loss_fn), "callbacks": [self._take]}
        options |= {} if world is None else {"world": world}
        return Trainer(model, config, loader, eval_data=val_loader, optimizer=settings.optimizer, **options)

    def _fit(self, trainer: Trainer) -> dict[str, Any]:
        began, self._epochs = time.perf_counter(), []
        self._is_training = True
        try:
            if self.config.enable_gpu_monitoring:
                self.gpu_monitor.start_monitoring()
            with trainer:
                self._result = trainer.fit()
        finally:
            self._is_training = False
            self._seconds = time.perf_counter() - began
            self.gpu_monitor.stop_monitoring()
        return self._results(self._result)

    def of_run(self, loader: Any) -> tuple[nn.Module, RunConfig]:
        """The model, and how drumline is to train it on this data. Raises ConfigError where one of them is missing."""
        if self.model is None:
            raise ConfigError("there is no model to train", "call initialize_training(model) first")
        if loader is None:
            raise ConfigError("there is no data to train on", "call setup_dataloader(dataset, batch_size) first")
        from torch.nn.modules.batchnorm import _BatchNorm

        norms = any(isinstance(module, _BatchNorm) for module in self.model.modules())
        batch_size = getattr(loader, "batch_size", None)
        return self.model, run_config(self.config, self.settings, self._gpus(), batch_size, has_norms=norms)

    def _take(self, trainer: Trainer, info: StepInfo) -> None:
        """Once an epoch, with its log line."""
        if info.logged is None:
            return
        held_out = {f"val_{name}": value for name, value in (info.evaluation or {}).items()}
        line = {"epoch": info.epoch, "train_loss": info.logged["loss"], **held_out}
        self._epochs.append({**line, "throughput": info.logged["samples_per_s"]})
        self.logger.log_epoch(line)
        self.record_gpu_metrics()

    def _results(self, result: Result) -> dict[str, Any]:
        losses = [each["loss"] for each in result.history]
        return {
            "training_mode": self.training_mode,
            "epochs": len(self._epochs),
            "updates": result.steps,
            "reason": result.reason,
            "train_loss": self._epochs[-1]["train_loss"] if self._epochs else None,
            "val_loss": losses[-1] if losses else None,
            "best_val_loss": min(losses, default=None),
            "training_time": self._seconds,
            "run_dir": str(result.run_dir),
            "history": self._epochs,
        }

    def record_gpu_metrics(self) -> dict[int, dict[str, Any]]:
        """Take the state of now into the summary, of device_ids or all GPUs; nothing where monitoring is off."""
        if not self.config.enable_gpu_monitoring:
            return {}
        return self.gpu_monitor.record_gpu_metrics(self.config.device_ids if self._gpus() else None)

    def get_training_info(self) -> dict[str, Any]:
        """training_mode, device_ids, rank, world_size, is_training, and gpu_info as the monitor has it."""
        from drumline.parallel.groups import started_world

        world = DistributedManager(self.config).world() or started_world()
        info = self.gpu_monitor.get_gpu_info()
        return {
            "training_mode": self.training_mode,
            "device_ids": self.config.device_ids or list(info["devices"]),
            "rank": world.rank,
            "world_size": world.size,
            "is_training": self._is_training,
            "gpu_info": info,
        }

    def get_performance_summary(self) -> dict[str, Any]:
        """Of the newest training: throughput, memory_efficiency, training_time (s), epochs, updates and gpu_summary.

        throughput: samples/s over all GPUs in the last epoch. memory_efficiency: tensors' share of the memory that
        torch has taken, at their largest; None where it uses no GPU. All but the last are None before a training.
        """
        summary = self.gpu_monitor.get_gpu_summary()
        reserved, result = summary["memory_reserved_max"], self._result
        return {
            "training_mode": self.training_mode,
            "throughput": self._epochs[-1]["throughput"] if self._epochs else None,
            "memory_efficiency": summary["memory_allocated_max"] / reserved if reserved else None,
            "training_time": None if result is None else self._seconds,
            "epochs": None if result is None else len(self._epochs),
            "updates": None if result is None else result.steps,
            "gpu_summary": summary,
        }

    def cleanup(self) -> None:
        """End the monitoring and let go of model and data; a training has given back the rest at its end."""
        self.gpu_monitor.stop_monitoring()
        self.model = self.train_loader = None


def create_multi_gpu_trainer(config: MultiGPUConfig | None = None, **kwargs: Any) -> MultiGPUTrainer:
    """A trainer. kwargs: fields of MultiGPUConfig, in place of the config's, and of TrainingSettings.

    Raises ConfigError for a name that neither has.
    """
    of_config, of_settings = ({field.name for field in fields(each)} for each in (MultiGPUConfig, TrainingSettings))
    for name in kwargs:
        if name not in of_config | of_settings:
            near = difflib.get_close_matches(name, sorted(of_config | of_settings), n=1)
            fix = f"did you mean {near[0]}?" if near else "see MultiGPUConfig and TrainingSettings for what there is"
            raise ConfigError(f"a multi-GPU trainer has no setting {name}", fix)
    config = replace(config or MultiGPUConfig(), **{name: kwargs[name] for name in kwargs if name in of_config})
    return MultiGPUTrainer(config, TrainingSettings(**{name: kwargs[name] for name in kwargs if name in of_settings}))


def optimize_model_for_multi_gpu(model: nn.Module, **kwargs: Any) -> tuple[nn.Module, MultiGPUTrainer]:
    """What create_multi_gpu_trainer(**kwargs) and its initialize_training(model) give."""
    trainer = create_multi_gpu_trainer(**kwargs)
    return trainer.initialize_training(model), trainer
