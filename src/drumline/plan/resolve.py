"""Derives every number of a run from its configuration and machine, each with its reason; touches no device."""

from __future__ import annotations

from typing import NamedTuple

from drumline.config.data import RandomTokens
from drumline.config.problem import refuse
from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.errors import DataError
from drumline.hardware.records import Hardware
from drumline.plan.devices import Devices, StartedWorld, choose_devices, count
from drumline.plan.kind import choose_kind
from drumline.plan.memory import ModelFacts
from drumline.plan.record import Plan
from drumline.plan.rules import AMPERE, config_problems, machine_problems, warm_up_problems

MOST_LOADER_WORKERS = 4
"""Loader processes a rank unless more are asked for: enough to hide reading, few enough for shared memory."""


def resolve(
    config: RunConfig,
    hardware: Hardware,
    world: StartedWorld | None = None,
    num_rows: int | None = None,
    facts: ModelFacts | None = None,
) -> Plan:
    """Decide how a run is done on this machine.

    world: the processes that were started; None asks what a launcher should start here. num_rows: rows of the training
    set, None while it is not known. facts: of the model, by which auto chooses; None while they are not known. Raises
    ConfigError that lists everything that cannot be meant, and DataError for a training set without rows.
    """
    if num_rows == 0:
        raise DataError("the training set is empty: there is nothing to learn from", "check data.train, or its filter")
    devices, problems = choose_devices(config, hardware, world)
    problems += [*config_problems(config), *machine_problems(config, devices, world)]
    if problems:
        raise refuse(problems)
    batch = _batch(config.train, devices)
    precision, why_precision = _precision(config.train, devices)
    chosen = choose_kind(config, devices, precision, batch.micro_batch, facts)
    backend, why_backend = _backend(config, devices, chosen.kind)
    num_workers, why_workers = _loader_workers(config, hardware, devices)
    if num_rows is None and isinstance(config.data, RandomTokens):
        num_rows = config.data.num_rows
    length = _length(config.train, num_rows, batch.global_batch)
    problems = warm_up_problems(config.train, length.steps)
    if problems:
        raise refuse(problems)
    return Plan(
        kind=chosen.kind,
        device=devices.device,
        gpus=tuple(gpu.uuid for gpu in devices.gpus),
        world_size=devices.size,
        num_shards=devices.num_shards,
        backend=backend,
        global_batch=batch.global_batch,
        micro_batch=batch.micro_batch,
        accumulation=batch.accumulation,
        precision=precision,
        num_workers=num_workers,
        memory_bytes=chosen.memory_bytes,
        steps=length.steps,
        steps_per_epoch=length.steps_per_epoch,
        reasons={
            "kind": chosen.why,
            **devices.reasons,
            "backend": why_backend,
            **batch.reasons,
            "precision": why_precision,
            "num_workers": why_workers,
            "memory_bytes": chosen.why_memory,
            **length.reasons,
        },
    )


def _backend(config: RunConfig, devices: Devices, kind: str) -> tuple[str, str]:
    if kind == "single":
        return "none", "one process does not communicate"
    if kind == "data_parallel":
        return "none", "one process has nobody to meet; its replicas sum their gradients inside it"
    if config.parallel.backend != "auto":
        return config.parallel.backend, f"parallel.backend asks for {config.parallel.backend}"
    if devices.device == "cuda":
        return "nccl", "auto: NCCL is the fastest between GPUs"
    return "gloo", "auto: gloo works between CPU processes"


class _Batch(NamedTuple):
    global_batch: int
    micro_batch: int
    accumulation: int
    reasons: dict[str, str]


def _batch(train: TrainConfig, devices: Devices) -> _Batch:
    shards = devices.num_shards
    if train.batch_size_per_gpu is not None:
        micro, passes = train.batch_size_per_gpu, train.gradient_accumulation_steps or 1
        total = micro * passes * shards
        whole = f"batch_size_per_gpu {micro} x {count(passes, 'pass')} x {count(shards, 'shard')} = {total} an update"
        why_micro = f"train.batch_size_per_gpu asks for {micro}"
    elif train.global_batch is not None:
        total = train.global_batch
        share = -(-total // shards)
        whole = f"train.global_batch asks for {total} samples an update, whatever the number of processes"
        if train.micro_batch == "auto":
            micro, why_micro = share, f"auto: the whole share of a shard, {share}"
            if devices.device == "cuda" and share > 1:
                why_micro += ", or as many as trials at the start find to fit"
        else:
            micro = min(train.micro_batch, share)
            why_micro = f"train.micro_batch asks for {train.micro_batch}"
            why_micro += f", and a shard's whole share is {share}" if micro < train.micro_batch else ""
        passes = -(-share // micro)
    else:
        raise AssertionError("config_problems refuses a configuration without a batch size")
    reasons = {
        "global_batch": whole,
        "micro_batch": why_micro,
        "accumulation": f"{count(total, 'sample')} an update over {count(shards, 'shard')}: {_shares(total, shards)}, "
        f"in {_passes(total, shards, micro, passes)}",
    }
    return _Batch(total, micro, passes, reasons)


def _shares(total: int, shards: int) -> str:
    least, extra = divmod(total, shards)
    if least == 0:
        return f"1 each in {total} of them, the others take part with weight zero"
    return f"{least} or {least + 1} each" if extra else f"{least} each"


def _passes(total: int, shards: int, micro: int, passes: int) -> str:
    if passes == 1:
        return "one pass"
    exact = total == shards * micro * passes
    return f"{passes} passes of {'' if exact else 'at most '}{micro}"


def _precision(train: TrainConfig, devices: Devices) -> tuple[str, str]:
    if train.precision != "auto":
        return train.precision, f"train.precision asks for {train.precision}"
    if devices.device == "cpu":
        return "fp32", "auto: full precision on the CPU"
    for gpu in devices.gpus:
        if gpu.compute_capability is None:
            return "fp16", f"auto: the compute capability of GPU {gpu.index} is not known, and fp16 works on every GPU"
        if gpu.compute_capability < AMPERE:
            major, minor = gpu.compute_capability
            return "fp16", f"auto: GPU {gpu.index} has compute capability {major}.{minor}, and bf16 starts at 8.0"
    return "bf16", "auto: every GPU has compute capability 8.0 or above"


def _loader_workers(config: RunConfig, hardware: Hardware, devices: Devices) -> tuple[int, str]:
    asked = config.loader.num_workers
    if asked is not None:
        return asked, f"loader.num_workers asks for {asked}"
    # Replicas on GPUs run at the same time and read as much as processes would; on the CPU they take turns.
    replicas = len(devices.gpus) if config.parallel.kind == "data_parallel" and devices.gpus else 1
    cores, there = hardware.host.cpu_cores, devices.local_size * replicas
    split = f"{count(cores, 'core')} for {count(there, 'process' if replicas == 1 else 'replica')}"
    if cores < 2 * there:
        return 0, f"{split}: loader processes would take cores from training, so each process loads by itself"
    workers = min(MOST_LOADER_WORKERS, cores // there - 1)
    each = "" if replicas == 1 else " for each"
    return workers * replicas, f"{split}: one is for training, of the others at most {MOST_LOADER_WORKERS} load{each}"


class _Length(NamedTuple):
    steps: int | None
    steps_per_epoch: int | None
    reasons: dict[str, str]


def _length(train: TrainConfig, num_rows: int | None, global_batch: int) -> _Length:
    per_epoch = None if num_rows is None else -(-num_rows // global_batch)
    if num_rows is None or per_epoch is None:
        why_epoch = "not known before the data is read"
    else:
        last = num_rows - (per_epoch - 1) * global_batch
        tail = f", the last of {last}" if last < global_batch else ""
        why_epoch = f"{count(num_rows, 'row')} in updates of {global_batch}{tail}"
    steps, why_steps = _steps(train, per_epoch)
    return _Length(steps, per_epoch, {"steps": why_steps, "steps_per_epoch": why_epoch})


def _steps(train: TrainConfig, per_epoch: int | None) -> tuple[int | None, str]:
    if train.epochs is None:
        return train.max_steps, f"train.max_steps asks for {train.max_steps}"
    most = f"train.max_steps {train.max_steps}" if train.max_steps is not None else ""
    if per_epoch is None:
        limit = f", but at most {most}" if most else ""
        return None, f"{count(train.epochs, 'epoch')}, of a length not known before the data is read{limit}"
    whole = train.epochs * per_epoch
    why = f"{count(train.epochs, 'epoch')} of {count(per_epoch, 'update')} = {whole}"
    if train.max_steps is not None and train.max_steps < whole:
        return train.max_steps, f"{most} ends before {why}"
    return whole, f"{why}, which ends before {most}" if most else why
