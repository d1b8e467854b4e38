"""How the e-mail sequence system says what is to be trained, and what drumline calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline.errors import ConfigError

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig

KINDS: Mapping[str, str] = {"single_gpu": "single", "data_parallel": "data_parallel", "distributed": "ddp"}
"""By training mode, drumline's kind of parallelism."""
OPTIMIZER = {"betas": [0.9, 0.999], "weight_decay": 0.01}
"""torch.optim.AdamW's own defaults."""


@dataclass
class MultiGPUConfig:
    """How the model is spread; the next training goes by what it then says.

    device_ids: CUDA's numbers; none: all GPUs; on a machine without GPU, under data_parallel, so many replicas of the
    CPU. backend: nccl counts where there are GPUs. world_size, rank, local_rank: -1: as the launcher, or a process
    group that exists, says. The communication and performance settings are those of `distributed`.
    find_unused_parameters, or enable_find_unused_parameters: look for them in each backward pass; without, parameters
    that got no gradient are seen and named all the same. sync_bn: of a model that has BatchNorm, needs GPUs.
    """

    training_mode: str = "auto"
    enable_data_parallel: bool = True
    device_ids: list[int] | None = None
    enable_distributed: bool = False
    backend: str = "nccl"
    init_method: str = "env://"
    world_size: int = -1
    rank: int = -1
    local_rank: int = -1
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    static_graph: bool = False
    enable_gradient_as_bucket_view: bool = False
    enable_find_unused_parameters: bool = False
    enable_gpu_monitoring: bool = True
    sync_bn: bool = False


@dataclass(kw_only=True)
class TrainingSettings:
    """What is trained for how long; the next training goes by what it then says.

    experiment_name: of the run, kept in runs/<name> with a checkpoint an epoch; training under the same name again goes
    on with it. None: a new run named by script and time, with a checkpoint at its end. batch_size: as the
    loader's if not given: samples an update, under distributed samples an update and GPU. early_stopping_patience:
    epochs without a lower validation loss; None: to the end. enable_mixed_precision: bfloat16 on GPUs from Ampere on,
    float16 on older ones; off: float32. enable_gradient_checkpointing: of a model that repeats a block. loss_fn:
    `loss_fn(outputs, targets)`, a mean over the samples; none: cross-entropy. optimizer: over the model's parameters;
    none: AdamW at learning_rate with torch's other defaults. The rate is constant.
    """

    experiment_name: str | None = None
    max_epochs: int = 10
    learning_rate: float = 1e-3
    batch_size: int | None = None
    early_stopping_patience: int | None = None
    enable_mixed_precision: bool = False
    enable_gradient_checkpointing: bool = False
    loss_fn: Callable[[Any, Any], Any] | None = None
    optimizer: Any = None


def detect_training_mode(config: MultiGPUConfig, num_gpus: int) -> str:
    """Pure: the mode that counts; `auto` goes by the number of GPUs, those in device_ids if it names any.

    Without GPU, and with one: single_gpu. With several, distributed if that is enabled, else data_parallel if that is;
    else single_gpu. Raises ConfigError for a mode that is none.
    """
    if config.training_mode in KINDS:
        return config.training_mode
    if config.training_mode != "auto":
        raise ConfigError(f"training_mode {config.training_mode!r} is none", f"say one of auto, {', '.join(KINDS)}")
    if num_gpus < 2 or len(config.device_ids or range(num_gpus)) < 2:
        return "single_gpu"
    if config.enable_distributed:
        return "distributed"
    return "data_parallel" if config.enable_data_parallel else "single_gpu"


def run_config(
    config: MultiGPUConfig, settings: TrainingSettings, gpus: Sequence[str], batch_size: int | None, *, has_norms: bool
) -> RunConfig:
    """Pure: what drumline calls it. Raises ConfigError for what cannot be meant.

    gpus: UUIDs of this process's GPUs, in CUDA's order. batch_size: the loader's. has_norms: whether the model has
    BatchNorm.
    """
    from drumline.config.load import config_from_mapping

    mode = detect_training_mode(config, len(gpus))
    batch = "batch_size_per_gpu" if mode == "distributed" else "global_batch"
    train: dict[str, Any] = {
        batch: settings.batch_size or batch_size,
        "epochs": settings.max_epochs,
        "lr": settings.learning_rate,
        "optimizer": OPTIMIZER,
        "schedule": {"name": "constant"},
        "precision": "auto" if settings.enable_mixed_precision else "fp32",
    }
    if settings.enable_gradient_checkpointing:
        train["checkpointing"] = {"kind": "full"}
    evaluate: dict[str, Any] = {}
    if settings.early_stopping_patience is not None:
        evaluate["early_stopping"] = {"patience": settings.early_stopping_patience}
    parallel = {"kind": KINDS[mode], **kind_settings(config, mode, has_norms=has_norms)}
    if mode == "data_parallel" and not gpus and config.device_ids:
        parallel["replicas"] = len(config.device_ids)
    mapping = {
        "name": settings.experiment_name,
        "train": train,
        "parallel": parallel,
        "evaluate": evaluate,
        "hardware": {"gpus": named(config.device_ids, gpus)},
        "track": {"console": False},
    }
    return config_from_mapping(mapping, "the settings of the training")


def kind_settings(config: MultiGPUConfig, mode: str, *, has_norms: bool) -> dict[str, Any]:
    """Pure: the fields of that kind of parallelism."""
    if mode == "data_parallel":
        return {"broadcast_buffers": config.broadcast_buffers}
    if mode == "single_gpu":
        return {}
    finds = config.find_unused_parameters or config.enable_find_unused_parameters
    return {
        "backend": "auto" if config.backend == "nccl" else config.backend,
        "bucket_mb": config.bucket_cap_mb,
        "static_graph": config.static_graph,
        "broadcast_buffers": config.broadcast_buffers,
        "gradient_as_bucket_view": config.enable_gradient_as_bucket_view,
        "find_unused": "always" if finds else "auto",
        "sync_batch_norm": config.sync_bn and has_norms,
    }


def named(device_ids: Sequence[int] | None, gpus: Sequence[str]) -> list[str] | None:
    """Pure: the UUIDs of these devices; None for all, and where there is no GPU. Raises ConfigError for a wrong one."""
    if not device_ids or not gpus:
        return None
    if wrong := [each for each in device_ids if not 0 <= each < len(gpus)]:
        what = f"device_ids has {wrong[0]}, and this process sees {len(gpus)} GPUs"
        raise ConfigError(what, f"choose from 0 to {len(gpus) - 1}; see CUDA_VISIBLE_DEVICES")
    return [gpus[each] for each in device_ids]
