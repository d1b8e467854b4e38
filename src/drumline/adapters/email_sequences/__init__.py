"""The multi-GPU training of an e-mail sequence system: its configuration, trainer, monitor and optimizer, by name."""

from __future__ import annotations

from drumline.adapters.email_sequences.monitoring import GPUMonitor
from drumline.adapters.email_sequences.optimizer import (
    ErrorHandler,
    OptimizedTrainingOptimizer,
    PerformanceOptimizer,
    create_optimized_training_optimizer,
)
from drumline.adapters.email_sequences.processes import (
    DistributedManager,
    get_free_port,
    launch_distributed_training,
    setup_distributed_environment,
)
from drumline.adapters.email_sequences.settings import MultiGPUConfig, TrainingSettings, detect_training_mode
from drumline.adapters.email_sequences.trainer import (
    DataParallelManager,
    MultiGPUTrainer,
    TrainingLogger,
    create_multi_gpu_trainer,
    optimize_model_for_multi_gpu,
)

__all__ = [
    "DataParallelManager",
    "DistributedManager",
    "ErrorHandler",
    "GPUMonitor",
    "MultiGPUConfig",
    "MultiGPUTrainer",
    "OptimizedTrainingOptimizer",
    "PerformanceOptimizer",
    "TrainingLogger",
    "TrainingSettings",
    "create_multi_gpu_trainer",
    "create_optimized_training_optimizer",
    "detect_training_mode",
    "get_free_port",
    "launch_distributed_training",
    "optimize_model_for_multi_gpu",
    "setup_distributed_environment",
]
