"""Which settings do not go together: rules over several sections, beyond what the schema says of each key."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.model import DecoderModel
from drumline.config.parallel import DdpParallel
from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.plan.devices import Devices, StartedWorld

AMPERE = (8, 0)
"""Compute capability from which on GPUs compute in bfloat16 and TF32 (NVIDIA Ampere architecture)."""


def config_problems(config: RunConfig) -> list[Problem]:
    """List the settings that contradict each other on any machine."""
    return [*_batch(config.train), *_length(config.train), *_evaluation(config), *_model(config)]


def machine_problems(config: RunConfig, devices: Devices, world: StartedWorld | None) -> list[Problem]:
    """List the settings that contradict the chosen devices or the processes that were started."""
    return [*_processes(config, devices, world), *_cpu(config, devices), *_precision(config, devices)]


def warm_up_problems(train: TrainConfig, steps: int | None) -> list[Problem]:
    """A warm-up longer than the run would never reach the learning rate that was asked for."""
    if steps is None or train.schedule.warmup_steps <= steps:
        return []
    what = f"{train.schedule.warmup_steps} updates of warm-up, but the run ends after {steps}"
    return [_problem("train.schedule.warmup_steps", what, f"set it to {steps} or less, or train for longer")]


def _problem(key: str, what: str, fix: str) -> Problem:
    return Problem(None, tuple(key.split(".")), what, fix)


def _batch(train: TrainConfig) -> Iterator[Problem]:
    per_gpu = train.batch_size_per_gpu
    if train.global_batch is not None and per_gpu is not None:
        what = f"{train.global_batch}, and train.batch_size_per_gpu is {per_gpu}: two ways to say the batch size"
        yield _problem("train.global_batch", what, "keep train.global_batch only")
    elif train.global_batch is None and per_gpu is None:
        what = "is not given, and neither is train.batch_size_per_gpu"
        yield _problem("train.global_batch", what, "set the samples of one update, such as train.global_batch=32")
    if train.gradient_accumulation_steps is not None and per_gpu is None:
        fix = "leave it out (accumulation follows from train.micro_batch), or give train.batch_size_per_gpu with it"
        yield _problem("train.gradient_accumulation_steps", "goes only with train.batch_size_per_gpu", fix)
    if per_gpu is not None and train.micro_batch != "auto":
        what = f"{train.micro_batch}, and train.batch_size_per_gpu is {per_gpu}: that is the micro-batch already"
        yield _problem("train.micro_batch", what, "leave train.micro_batch out")


def _length(train: TrainConfig) -> Iterator[Problem]:
    if train.epochs is None and train.max_steps is None:
        what = "is not given, and neither is train.max_steps: the run has no end"
        yield _problem("train.epochs", what, "set train.epochs=1, or a number of updates as train.max_steps")
    yield from warm_up_problems(train, train.max_steps)


def _evaluation(config: RunConfig) -> Iterator[Problem]:
    data = config.data
    if config.evaluate.early_stopping is None or data is None:
        return
    key = {"random_tokens": "num_eval_rows", "datasets": "eval_split"}.get(data.kind, "eval")
    if not getattr(data, key):
        fix = f"give held-out data as data.{key}, or set evaluate.early_stopping to null"
        yield _problem("evaluate.early_stopping", f"watches an evaluation, and data.{key} has nothing to evaluate", fix)


def _model(config: RunConfig) -> Iterator[Problem]:
    model = config.model
    if not isinstance(model, DecoderModel):
        return
    heads = model.num_heads
    if model.width % heads:
        what = f"{heads} heads cannot share a width of {model.width} evenly"
        fix = f"set model.num_heads to a divisor of {model.width}, such as {_divisor(model.width, heads)}"
        yield _problem("model.num_heads", what, fix)
    elif model.style == "llama" and model.width // heads % 2:
        what = (
            f"heads of size {model.width // heads} (width {model.width} over {heads}), and rotation needs an even size"
        )
        yield _problem("model.num_heads", what, "choose num_heads so that width / num_heads is even")
    if model.num_kv_heads is not None and heads % model.num_kv_heads:
        what = f"{heads} heads cannot share {model.num_kv_heads} key and value heads evenly"
        fix = f"set it to a divisor of {heads}, such as {_divisor(heads, model.num_kv_heads)}"
        yield _problem("model.num_kv_heads", what, fix)


def _divisor(number: int, near: int) -> int:
    return next(each for each in range(min(near, number), 0, -1) if number % each == 0)


def _processes(config: RunConfig, devices: Devices, world: StartedWorld | None) -> Iterator[Problem]:
    asked = config.hardware.num_processes
    if world is not None and asked not in (None, world.local_size) and devices.device == "cpu":
        what = f"asks for {asked}, but {world.source} started {world.local_size} on this machine"
        fix = f"start it by: drumline launch script.py, or set hardware.num_processes to {world.local_size}"
        yield _problem("hardware.num_processes", what, fix)
    if config.parallel.kind == "single" and devices.size > 1:
        what = f"single is one process, and there are {devices.size} ({devices.reasons['world_size']})"
        yield _problem("parallel.kind", what, "set parallel.kind to auto or ddp, or start one process")


def _cpu(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    if devices.device != "cpu":
        return
    why = devices.reasons["device"]
    if config.parallel.backend == "nccl":
        what = f"nccl works between GPUs only, and the run is on the CPU: {why}"
        yield _problem("parallel.backend", what, "set parallel.backend to auto or gloo")
    if isinstance(config.parallel, DdpParallel) and config.parallel.sync_batch_norm:
        what = f"torch synchronises BatchNorm on GPUs only, and the run is on the CPU: {why}"
        yield _problem("parallel.sync_batch_norm", what, "set parallel.sync_batch_norm to false")
    if config.train.precision == "tf32":
        what = f"tf32 is a mode of NVIDIA GPUs, and the run is on the CPU: {why}"
        yield _problem("train.precision", what, "set train.precision to auto or fp32")


def _precision(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    asked = config.train.precision
    if asked not in ("bf16", "tf32"):
        return
    old = [gpu for gpu in devices.gpus if gpu.compute_capability is not None and gpu.compute_capability < AMPERE]
    if old:
        major, minor = old[0].compute_capability or AMPERE
        what = (
            f"{asked} needs compute capability 8.0 (Ampere), and GPU {old[0].index}, {old[0].name}, has {major}.{minor}"
        )
        fix = "set train.precision to auto or fp16" if asked == "bf16" else "set train.precision to auto or fp32"
        yield _problem("train.precision", what, fix)
