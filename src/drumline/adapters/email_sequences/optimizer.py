"""The e-mail sequence system's training optimizer: model, data and settings in one thing, with measurements."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.adapters.email_sequences.settings import MultiGPUConfig, TrainingSettings
from drumline.adapters.email_sequences.trainer import MultiGPUTrainer, TrainingLogger
from drumline.adapters.epoch_trainer import mean_loss
from drumline.errors import DrumlineError

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger("drumline")


class ErrorHandler:
    """Says what an error is and what to do about it; the training's own recovery is drumline's."""

    def handle_error(self, error: BaseException, context: str = "training") -> dict[str, str | None]:
        """Write it into the log `drumline`; returns its code (drumline's, else the class), message, and fix or None."""
        logger.error("%s failed: %s", context, error)
        if isinstance(error, DrumlineError):
            return {"context": context, "code": error.code, "message": error.problem, "fix": error.fix}
        return {"context": context, "code": type(error).__name__, "message": str(error), "fix": None}


class PerformanceOptimizer:
    """Measures a trainer's model on its data."""

    def __init__(self, trainer: MultiGPUTrainer) -> None:
        self.trainer = trainer

    def benchmark(self, num_iterations: int = 100) -> dict[str, Any]:
        """What drumline.benchmark_multi_gpu_performance says of so many updates of a copy of the model."""
        from drumline.bench.multi_gpu import benchmark_multi_gpu_performance

        loader = self.trainer.train_loader
        model, config = self.trainer.of_run(loader)
        train = config.train.model_copy(update={"max_steps": num_iterations})
        config = config.model_copy(update={"train": train})
        return benchmark_multi_gpu_performance(model, loader, config, loss=mean_loss(self.trainer.settings.loss_fn))

    def optimal_batch_size(self, target_memory_usage: float = 0.9) -> int | None:
        """The largest batch of which a pass fits into that share of a GPU's memory, at most the data set's share.

        As batch_size counts: samples a GPU under distributed, else over all of them. On a machine without GPU there is
        no memory to fill, and it is the batch size that the settings or the loader have.
        """
        from drumline.hardware.inventory import detect

        if not detect().gpus:
            return self.trainer.settings.batch_size or getattr(self.trainer.train_loader, "batch_size", None)
        return self.largest_batch(target_memory_usage)

    def largest_batch(self, target_memory_usage: float) -> int:
        """What trial passes at the start of a run find; all ranks call it."""
        from drumline.bench.train import MeasuredTrainer

        loader, loss = self.trainer.train_loader, mean_loss(self.trainer.settings.loss_fn)
        model, config = self.trainer.of_run(loader)
        rows, collate = getattr(loader, "dataset", loader), getattr(loader, "collate_fn", None)
        memory = config.train.out_of_memory.model_copy(update={"target": target_memory_usage})
        update = {"global_batch": len(rows), "batch_size_per_gpu": None, "out_of_memory": memory}
        train = config.train.model_copy(update=update)
        options: dict[str, Any] = {} if collate is None else {"collate": collate}
        with tempfile.TemporaryDirectory(prefix="drumline-batch-size-") as folder:
            of_run = {"train": train, "name": None, "run_dir": Path(folder) / "run"}
            config = config.model_copy(update=of_run)
            with MeasuredTrainer(model, config, rows, loss=loss, **options) as found:
                plan = found.facts()["plan"]
        replicas = plan["num_shards"] if plan["kind"] == "data_parallel" else 1
        return int(plan["micro_batch"]) * replicas


@dataclass(kw_only=True)
class OptimizedTrainingOptimizer(TrainingSettings):
    """A model, its data, and how it is trained; the next training goes by what the attributes then say."""

    model: nn.Module
    train_loader: Any
    val_loader: Any = None
    multi_gpu_config: MultiGPUConfig = field(default_factory=MultiGPUConfig)

    def __post_init__(self) -> None:
        self.multi_gpu_trainer = MultiGPUTrainer(self.multi_gpu_config, self)
        self.multi_gpu_trainer.initialize_training(self.model)
        self.multi_gpu_trainer.train_loader = self.train_loader
        self.performance_optimizer = PerformanceOptimizer(self.multi_gpu_trainer)
        self.error_handler = ErrorHandler()

    @property
    def logger(self) -> TrainingLogger:
        """Has a line an epoch."""
        return self.multi_gpu_trainer.logger

    async def train(self) -> dict[str, Any]:
        """Train, and return what MultiGPUTrainer.train returns; an error is logged and raised."""
        try:
            return await self.multi_gpu_trainer.train(self.train_loader, self.val_loader)
        except Exception as error:
            self.error_handler.handle_error(error)
            raise

    def benchmark_performance(self, num_iterations: int = 100) -> dict[str, Any]:
        """average_forward_time and average_backward_time (s, the median of some updates), and all of the benchmark."""
        found = self.performance_optimizer.benchmark(num_iterations)
        times = {f"average_{phase}": found[phase] for phase in ("forward_time", "backward_time", "optimizer_time")}
        return {**times, **found}

    def get_optimal_batch_size(self, target_memory_usage: float = 0.9) -> int | None:
        """As PerformanceOptimizer.optimal_batch_size."""
        return self.performance_optimizer.optimal_batch_size(target_memory_usage)


def create_optimized_training_optimizer(
    model: nn.Module,
    train_loader: Any,
    val_loader: Any = None,
    multi_gpu_config: MultiGPUConfig | None = None,
    **settings: Any,
) -> OptimizedTrainingOptimizer:
    """Everything of a training in one thing. settings: fields of TrainingSettings, with its defaults."""
    config = MultiGPUConfig() if multi_gpu_config is None else multi_gpu_config
    return OptimizedTrainingOptimizer(
        model=model, train_loader=train_loader, val_loader=val_loader, multi_gpu_config=config, **settings
    )
