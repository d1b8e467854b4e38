"""drumline: many GPUs, one beat. Trains and runs models on every GPU, with the numbers that one GPU gives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from drumline.bench.multi_gpu import benchmark_multi_gpu_performance
    from drumline.build.prediction import predict
    from drumline.config.schema import RunConfig
    from drumline.config.train import TrainConfig
    from drumline.engine.callbacks import Callback
    from drumline.engine.records import Result, StepInfo
    from drumline.engine.trainer import Trainer
    from drumline.errors import DrumlineError, Interrupted
    from drumline.hardware.selection import select_optimal_gpus
    from drumline.jobs.finetuning import FineTuningService
    from drumline.launcher.functions import launch
    from drumline.launcher.world import World
    from drumline.monitor.contexts import gpu_monitoring_context, performance_context
    from drumline.monitor.gpu_monitor import GPUMonitor, get_gpu_info
    from drumline.parallel.optimized import OptimizedDataParallel
    from drumline.parallel.strategy import Loss
    from drumline.service.client import AsyncClient, Client

_HOMES = {
    "AsyncClient": "drumline.service.client",
    "Callback": "drumline.engine.callbacks",
    "Client": "drumline.service.client",
    "DrumlineError": "drumline.errors",
    "FineTuningService": "drumline.jobs.finetuning",
    "GPUMonitor": "drumline.monitor.gpu_monitor",
    "Interrupted": "drumline.errors",
    "Loss": "drumline.parallel.strategy",
    "OptimizedDataParallel": "drumline.parallel.optimized",
    "Result": "drumline.engine.records",
    "RunConfig": "drumline.config.schema",
    "StepInfo": "drumline.engine.records",
    "TrainConfig": "drumline.config.train",
    "Trainer": "drumline.engine.trainer",
    "World": "drumline.launcher.world",
    "benchmark_multi_gpu_performance": "drumline.bench.multi_gpu",
    "get_gpu_info": "drumline.monitor.gpu_monitor",
    "gpu_monitoring_context": "drumline.monitor.contexts",
    "launch": "drumline.launcher.functions",
    "performance_context": "drumline.monitor.contexts",
    "predict": "drumline.build.prediction",
    "select_optimal_gpus": "drumline.hardware.selection",
}
__all__ = [
    "AsyncClient",
    "Callback",
    "Client",
    "DrumlineError",
    "FineTuningService",
    "GPUMonitor",
    "Interrupted",
    "Loss",
    "OptimizedDataParallel",
    "Result",
    "RunConfig",
    "StepInfo",
    "TrainConfig",
    "Trainer",
    "World",
    "benchmark_multi_gpu_performance",
    "get_gpu_info",
    "gpu_monitoring_context",
    "launch",
    "performance_context",
    "predict",
    "select_optimal_gpus",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch costs seconds, and `drumline --help` needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'drumline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
