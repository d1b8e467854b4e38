"""What is sent to the /multigpu paths, in the field names that their users know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from drumline.config.section import Section
from drumline.jobs.defaults import BatchSize, GPUConfig, GpuId
from drumline.jobs.requests import Chosen, ChosenPaths, Label, ResourcesRequest, Texts

NodeName = Annotated[str, Field(min_length=1, max_length=255)]
EXAMPLE: dict[str, Any] = {
    "model_name": "gpt2",
    "dataset_config": {"texts": ["sample text 1", "sample text 2"], "max_length": 512},
    "training_config": {"epochs": 3, "learning_rate": 5e-5},
    "user_id": 123,
    "training_type": "dataparallel",
}


class DatasetConfig(Section):
    """What is learned from: texts in the request, or files that the service may read."""

    texts: Texts | None = Field(
        None,
        description="Rows, each a text or named values, as {prompt: ..., completion: ...}.",
        examples=[["sample text 1", "sample text 2"]],
    )
    path: Chosen | ChosenPaths | None = Field(
        None, description="Files or folders instead of texts, below the configured roots."
    )
    max_length: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Most tokens of a row; null: by the rows."
    )
    batch_size: BatchSize | None = Field(
        None, description="Samples an update over all GPUs, instead of batch_size_per_gpu."
    )
    columns: dict[str, str] = Field(default={}, description="Names that the task asks for, and the data's own.")


class TrainingRequest(Section):
    """A training that somebody asks for: a model and data, or the id of what training/config has kept."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE, {"config_id": "plan-1f0e2d3c4b5a6978"}]})

    config_id: Chosen | None = Field(
        None, description="What POST /multigpu/training/config answered; then nothing else is said but user_id."
    )
    model_name: Chosen | None = Field(
        None,
        description="A name of the service's table, a folder below its roots, or a name on the hub that it allows.",
    )
    dataset_config: DatasetConfig | None = Field(None, description="What is learned from.")
    training_config: Annotated[dict[str, Any], Field(max_length=500)] = Field(
        default={},
        description="epochs, learning_rate, batch_size_per_gpu, gradient_accumulation_steps, warmup_steps, … or any "
        "name of the schema, as train.schedule.name. What is not said is chosen by model and data.",
    )
    gpu_config: GPUConfig | None = Field(
        None,
        description="Of this training alone; fields that are left out are as GET /multigpu/config says. With gpu_ids "
        "it is given these GPUs and no others, all of them unless world_size or resources say fewer.",
    )
    user_id: int | Label | None = Field(None, description="A label of the caller's own, to find trainings by.")
    training_type: Literal["dataparallel", "distributed", "auto"] | None = Field(
        None, description="The same as the path says; another one is refused."
    )
    resources: ResourcesRequest | None = Field(None, description="Priority, limits, how many devices.")
    name: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field("", description="For people.")
    tags: Annotated[list[Label], Field(max_length=50)] = Field(default=[], description="To find it by.")


class DistributedRequest(TrainingRequest):
    """A training in one process a GPU."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**EXAMPLE, "training_type": "distributed", "world_size": 4}]}
    )

    world_size: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="How many GPUs, or without any processes; null: as the defaults say."
    )


class ConfigRequest(DistributedRequest):
    """A training that is to be looked at, and started later."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**EXAMPLE, "training_type": "auto"}]})

    config_id: None = Field(None, description="Nothing: this path gives one.")


class ManageRequest(Section):
    """What is to be done with the machine's resources."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"action": "cleanup"}, {"action": "cleanup", "give_up": ["trainer-2"]}, {"action": "optimize"}]
        }
    )

    action: Literal["cleanup", "monitor", "optimize"] = Field(
        description="cleanup: give back leases without a process, end processes that a job left behind, remove caches "
        "of ended jobs (of all owners for an admin, else one's own); monitor: what is in use now; optimize: settings "
        "that measured runs speak for."
    )
    gpu_ids: Annotated[list[GpuId], Field(max_length=1024)] = Field(
        default=[], description="monitor: of these GPUs only, by index or UUID; empty: all."
    )
    model_name: Chosen | None = Field(None, description="optimize: by runs of this model only.")
    give_up: Annotated[list[NodeName], Field(max_length=1024)] | Literal["all"] = Field(
        default=[],
        description="cleanup, for admins: machines on the same store that do not answer, or all of those. Their jobs "
        "end as lost, and their leases are given back. Name none that may only be cut off: its processes may train on, "
        "and are killed once it answers again.",
    )


class GpuTestRequest(Section):
    """Which GPUs are to be tested."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"gpu_ids": [0, 1]}, {}]})

    gpu_ids: Annotated[list[GpuId], Field(max_length=1024)] = Field(
        default=[], description="By index or UUID; empty: all that nobody uses."
    )
    limit_s: Annotated[float, Field(gt=0, le=3600)] | None = Field(
        None, description="Seconds that it may take; at most, and where null, as the service's gpu_test_s says."
    )
