"""From what the /multigpu paths are sent to a request for a job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from drumline.errors import ConfigError
from drumline.jobs.defaults import GPUConfig, changed, devices_from, gpus_named, parallel_from, settings_from
from drumline.jobs.finetuning_settings import as_settings
from drumline.jobs.requests import JobRequest, ResourcesRequest
from drumline.service.routes.multigpu.requests import DatasetConfig, DistributedRequest, TrainingRequest

Method = Literal["dataparallel", "distributed", "auto"]

BESIDE_A_PLAN = frozenset({"config_id", "user_id", "training_type", "name", "tags"})
"""What may be said beside the id of a plan: it changes nothing of what was planned."""


def job_request(
    body: TrainingRequest,
    method: Method,
    defaults: GPUConfig,
    *,
    has_gpus: bool,
    indexes: Callable[[], Mapping[int, str]],
    complete: bool = True,
) -> JobRequest:
    """The job that a body asks for under /multigpu/training/{method}.

    defaults: what holds where the body says nothing. indexes: UUIDs of the machine's GPUs by nvidia-smi's index.
    complete: whether model and data must be said. Raises ConfigError for what cannot be meant, and HardwareError for
    GPUs that are not there.
    """
    _same_type(body, method)
    if complete and (body.model_name is None or body.dataset_config is None):
        missing = "model_name" if body.model_name is None else "dataset_config"
        raise ConfigError(f"{missing} is missing", "say what is fine-tuned on what, or a config_id of training/config")
    gpu = defaults
    if body.gpu_config is not None:
        gpu = changed(defaults, body.gpu_config.model_dump(exclude_unset=True))
    dataset = body.dataset_config or DatasetConfig()
    said = _said(body.training_config, dataset)
    named = [] if body.gpu_config is None else body.gpu_config.gpu_ids
    gpus = gpus_named(named, indexes()) if named else []
    elastic = body.resources is not None and body.resources.min_devices is not None
    settings = {**settings_from(gpu, set(said), has_gpus=has_gpus, elastic=elastic), **said}
    if method == "dataparallel":
        if "parallel" in said or "parallel.kind" in said:
            raise ConfigError("training/dataparallel says parallel.kind itself", "leave it out, or use training/auto")
        parallel: Literal["auto", "data_parallel", "distributed"] = "data_parallel"
    else:
        parallel = "distributed" if method == "distributed" else parallel_from(gpu)
    return JobRequest(
        kind="finetune",
        model_name=body.model_name,
        texts=dataset.texts,
        path=dataset.path,
        max_length=dataset.max_length,
        columns=dataset.columns,
        settings=settings,
        parallel=parallel,
        resources=_resources(body, gpu, settings, method, gpus, has_gpus=has_gpus),
        name=body.name,
        tags=body.tags,
        user_id=body.user_id,
        training_type=method,
    )


def planned_request(body: TrainingRequest, method: Method, planned: JobRequest) -> JobRequest:
    """The job that was planned before, with what this body calls it, and model and data where the plan has none.

    Raises ConfigError for more than that.
    """
    _same_type(body, method)
    open_ones = {"model_name"} if planned.model_name is None else set()
    has_data = planned.texts is not None or planned.path is not None
    open_ones |= set() if has_data else {"dataset_config"}
    more = sorted(body.model_fields_set - BESIDE_A_PLAN - open_ones)
    if more:
        raise ConfigError(f"{', '.join(more)}: config_id says all of it", "leave it out, or plan anew")
    if planned.training_type not in (None, method):
        raise ConfigError(
            f"it was planned for training/{planned.training_type}", f"start it there, or plan it for {method}"
        )
    told = ("user_id", "name", "tags", "model_name")
    update = {name: getattr(body, name) for name in told if name in body.model_fields_set}
    if body.dataset_config is not None:
        said = body.dataset_config.model_dump(exclude_unset=True, exclude={"batch_size"})
        if body.dataset_config.batch_size is not None:
            raise ConfigError("dataset_config.batch_size: the plan has the batch", "leave it out, or plan anew")
        update |= said
    return planned.model_copy(update={**update, "training_type": method})


def _same_type(body: TrainingRequest, method: Method) -> None:
    if body.training_type not in (None, method):
        raise ConfigError(
            f"training_type is {body.training_type}, and the path is training/{method}",
            f"send it to training/{body.training_type}, or leave training_type out",
        )


def _said(training_config: dict[str, Any], dataset: DatasetConfig) -> dict[str, Any]:
    """The settings that a body says itself, by dotted names."""
    said = as_settings(training_config)
    if dataset.batch_size is not None and "train.batch_size_per_gpu" not in said:
        said.setdefault("train.global_batch", dataset.batch_size)
    if said.get("train.global_batch") is not None and "train.batch_size_per_gpu" in said:
        raise ConfigError(
            "training_config says batch_size and batch_size_per_gpu", "keep one: they are two ways to say the same"
        )
    return said


def _resources(
    body: TrainingRequest,
    gpu: GPUConfig,
    settings: dict[str, Any],
    method: Method,
    gpus: list[str],
    *,
    has_gpus: bool,
) -> ResourcesRequest:
    """What the job needs: as resources say, else world_size, the GPUs that were named, or what the defaults say."""
    world_size = body.world_size if isinstance(body, DistributedRequest) else None
    asked = ResourcesRequest() if body.resources is None else body.resources
    if gpus and asked.gpus:
        raise ConfigError("gpu_config.gpu_ids and resources.gpus both name GPUs", "say one of the two")
    if gpus:
        asked = asked.model_copy(update={"gpus": gpus})
    if "devices" in asked.model_fields_set or asked.min_devices is not None:
        if world_size is not None and asked.devices not in ("auto", world_size):
            raise ConfigError(
                f"world_size is {world_size}, and resources.devices {asked.devices}", "say one of the two"
            )
        if world_size is None:
            return asked
    devices: int | Literal["auto"] = devices_from(gpu)
    if world_size is not None:
        devices = world_size
    elif settings.get("parallel.kind") == "single":
        devices = 1
    elif gpus and devices == "auto":
        devices = len(gpus)
    elif not has_gpus and method == "dataparallel":
        devices = 1  # its replicas take turns on the CPU, in one process
    return asked.model_copy(update={"devices": devices})
