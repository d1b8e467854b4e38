"""What later jobs take where their request does not say: one document for the machine, kept in versions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from drumline.config.section import Fraction, Section
from drumline.errors import ConfigError, HardwareError
from drumline.jobs.records import Inventory

KIND: Literal["defaults"] = "defaults"
"""Under which name store.settings keeps it, version by version."""

MOST = 1_000_000
"""Of a batch or of accumulation: more is a slip of the pen."""

GpuId = Annotated[int, Field(ge=0, le=10_000)] | Annotated[str, Field(min_length=1, max_length=64)]
BatchSize = Annotated[int, Field(ge=1, le=MOST)]

WHOLE_BATCH = frozenset({"train.global_batch", "train.micro_batch"})
"""Settings that say the batch in another way, beside which one a GPU would be a contradiction."""


class GPUConfig(Section):
    """How trainings use GPUs where their request does not say."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"batch_size_per_gpu": 8, "mixed_precision": True}]})

    use_multi_gpu: bool = Field(True, description="Whether a training may have several GPUs; false: it gets one.")
    gpu_ids: list[GpuId] = Field(
        default=[],
        max_length=1024,
        description="By index as nvidia-smi shows it, or by UUID; empty: any. In POST /multigpu/config: the only GPUs "
        "that any job is given from now on, those that wait already too; what runs keeps what it has. In a training's "
        "gpu_config: the only GPUs that this training is given; it waits for them.",
    )
    distributed_training: bool = Field(
        False,
        description="Whether trainings under training/auto are noted down as distributed. How they run does not depend "
        "on it: on several GPUs each is one process a GPU (DistributedDataParallel, or fsdp) already.",
    )
    backend: Literal["nccl", "gloo"] = Field(
        "nccl", description="Between processes. nccl is for GPUs: without any, gloo is taken all the same."
    )
    batch_size_per_gpu: BatchSize = Field(8, description="Samples a GPU and forward pass.")
    gradient_accumulation_steps: BatchSize = Field(1, description="Forward passes a GPU and update.")
    sync_batch_norm: bool = Field(
        True, description="BatchNorm over all GPUs' samples, under ddp; language models have no BatchNorm."
    )
    mixed_precision: bool = Field(
        True, description="Half precision where the device is made for it (bf16, or fp16 on older GPUs)."
    )
    memory_fraction: Fraction = Field(
        0.9, description="Share of each GPU's memory that a training's process may allocate."
    )


def changed(current: GPUConfig, change: Mapping[str, Any]) -> GPUConfig:
    """The document after a change that names some of its fields; the others keep what they have.

    Raises ConfigError for a value that cannot be meant.
    """
    return GPUConfig.model_validate({**current.model_dump(), **change})


def settings_from(config: GPUConfig, said: Collection[str], *, has_gpus: bool, elastic: bool = False) -> dict[str, Any]:
    """Dotted settings that these defaults give a training.

    said: dotted settings that it says itself, which count. has_gpus: whether the machine has any. elastic: its batch
    must not follow its number of devices, and is left to be chosen.
    """
    found: dict[str, Any] = {}
    if not WHOLE_BATCH.intersection(said) and not elastic:
        found["train.batch_size_per_gpu"] = config.batch_size_per_gpu
        found["train.gradient_accumulation_steps"] = config.gradient_accumulation_steps
    if not config.mixed_precision:
        found["train.precision"] = "fp32"
    if has_gpus:
        found["hardware.memory_fraction"] = config.memory_fraction
        if config.backend == "gloo":  # nccl is what auto comes to between GPUs, and gloo without them
            found["parallel.backend"] = "gloo"
    return {name: value for name, value in found.items() if name not in said}


def parallel_from(config: GPUConfig) -> Literal["auto", "distributed"]:
    """What a training that asks for auto is noted down as; both are one process a GPU, but for what it says itself."""
    return "distributed" if config.distributed_training else "auto"


def devices_from(config: GPUConfig) -> int | Literal["auto"]:
    """How many devices a training gets that does not say; `gpu_ids` says besides which ones they may be."""
    return "auto" if config.use_multi_gpu else 1


def notes_on(config: GPUConfig, said: Collection[str], indexes: Mapping[int, str]) -> list[str]:
    """What of a change has no effect on this machine, in words.

    said: the fields that were named. indexes: UUIDs of the machine's GPUs by nvidia-smi's index; empty: it has none.
    """
    notes = []
    if "gpu_ids" in said and config.gpu_ids:
        missing = [str(name) for name in config.gpu_ids if uuid_of(name, indexes) is None]
        if not indexes:
            notes.append("gpu_ids: this machine has no GPU, so trainings take its processors")
        elif missing:
            notes.append(f"gpu_ids: this machine has no GPU {', '.join(missing)}; those that it has are taken")
    if not indexes and "backend" in said and config.backend == "nccl":
        notes.append("backend: nccl needs GPUs; between processes on the CPU gloo is taken")
    if "sync_batch_norm" in said and config.sync_batch_norm:
        notes.append("sync_batch_norm: language models have no BatchNorm; other models need parallel.kind ddp for it")
    return notes


def uuid_of(name: int | str, indexes: Mapping[int, str]) -> str | None:
    """The UUID that an index, a UUID or the beginning of one names; None where it fits none, or several."""
    text = str(name).strip().lower()
    if text.isdecimal():
        return indexes.get(int(text))
    found = [uuid for uuid in indexes.values() if len(text) > len("GPU-") and uuid.lower().startswith(text)]
    return found[0] if len(found) == 1 else None


def with_uuids(gpu_ids: Iterable[int | str], indexes: Mapping[int, str]) -> list[int | str]:
    """The same GPUs by UUID, which stays theirs when a restart counts them anew; as they were where none is there."""
    return list(dict.fromkeys(uuid_of(name, indexes) or name for name in gpu_ids))


def with_indexes(gpu_ids: Iterable[int | str], indexes: Mapping[int, str]) -> list[int | str]:
    """The same GPUs by the numbers that they have now; as they were where none is there."""
    numbers = {uuid: index for index, uuid in indexes.items()}
    return [numbers.get(str(name), name) for name in gpu_ids]


def gpus_named(gpu_ids: Iterable[int | str], indexes: Mapping[int, str]) -> list[str]:
    """The UUIDs of GPUs that a request names. Raises ConfigError for one twice, HardwareError for one that is not."""
    found: dict[str, str] = {}
    for name in gpu_ids:
        uuid = uuid_of(name, indexes)
        if uuid is None:
            raise HardwareError(f"gpu_ids: this machine has no GPU {name}", told_of(indexes))
        if uuid in found:
            raise ConfigError(f"gpu_ids names {found[uuid]} twice", "name each GPU once")
        found[uuid] = str(name)
    return list(found)


def told_of(indexes: Mapping[int, str]) -> str:
    """Which GPUs there are, for one who asked for others."""
    there = ", ".join(f"{index} ({uuid})" for index, uuid in sorted(indexes.items()))
    return f"choose from {there}" if there else "it has none: leave gpu_ids out"


def limited(inventory: Inventory, gpu_ids: Iterable[int | str]) -> Inventory:
    """The inventory as jobs may use it: of its GPUs only those whose UUIDs are named, if any; slots are left alone.

    Names that are not there any more limit nothing, so that an exchanged GPU does not stop every job.
    """
    named = {device.id for device in inventory.devices}.intersection(map(str, gpu_ids))
    if not named or not inventory.has_gpus:
        return inventory
    why = "gpu_ids of POST /multigpu/config names others"
    devices = (
        device if device.id in named else replace(device, unusable=device.unusable or why)
        for device in inventory.devices
    )
    return replace(inventory, devices=tuple(devices))
