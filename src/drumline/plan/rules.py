"""Which settings do not go together: rules over several sections, beyond what the schema says of each key."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.combinations import combination_problems
from drumline.config.model import DecoderModel
from drumline.config.parallel import DdpParallel
from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.config.train import OptimizerConfig, ScheduleConfig, TrainConfig
from drumline.plan.devices import Devices, StartedWorld
from drumline.plan.rules_adapters import adapter_problems
from drumline.plan.rules_compute import compute_problems
from drumline.plan.rules_monitor import alert_problems, budget_problems, secret_problems
from drumline.plan.rules_parallel import parallel_problems

AMPERE = (8, 0)
"""Compute capability from which on GPUs compute in bfloat16 and TF32 (NVIDIA Ampere architecture)."""


def config_problems(config: RunConfig) -> list[Problem]:
    """List the settings that contradict each other on any machine."""
    train = config.train
    return [
        *_batch(train),
        *_length(train),
        *_schedule(config.train.schedule),
        *_averaging(train),
        *_optimizer(train.optimizer),
        *_evaluation(config),
        *_model(config),
        *combination_problems(config),
        *alert_problems(config.monitor.alerts),
        *budget_problems(config.monitor),
    ]


def machine_problems(config: RunConfig, devices: Devices, world: StartedWorld | None) -> list[Problem]:
    """List the settings that contradict the chosen devices or the processes that were started."""
    return [
        *_processes(config, devices, world),
        *_cpu(config, devices),
        *_precision(config, devices),
        *_gradient_noise(config, devices),
        *parallel_problems(config, devices),
        *compute_problems(config, devices),
        *adapter_problems(config, devices),
        *secret_problems(config.monitor, devices.device),
    ]


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


def _averaging(train: TrainConfig) -> Iterator[Problem]:
    """An average that begins so late, or takes weights in so seldom, that the run ends before the first."""
    average, steps = train.averaging, train.max_steps
    if average is None or steps is None:
        return
    left = steps - int(average.start * steps)
    if average.every > left:
        what = f"every {average.every} updates, and of the run's {steps} at most {left} are left when it begins"
        yield _problem("train.averaging.every", what, f"set it to {left} or less: no weights would be averaged")


def _schedule(schedule: ScheduleConfig) -> Iterator[Problem]:
    by_torch = schedule.name == "torch"
    if by_torch and schedule.scheduler is None:
        fix = "name a class of torch.optim.lr_scheduler, such as StepLR, with its arguments in train.schedule.options"
        yield _problem("train.schedule.scheduler", "is not given, and train.schedule.name is torch", fix)
    for key in ("scheduler", "options"):
        if not by_torch and getattr(schedule, key):
            what = f"is for a scheduler of torch's, and train.schedule.name is {schedule.name}"
            yield _problem(f"train.schedule.{key}", what, "set train.schedule.name to torch, or leave it out")
    if by_torch and schedule.warmup_steps:
        what = f"{schedule.warmup_steps}, and train.schedule.name is torch: its scheduler alone makes the rates"
        fix = "leave it out, or take a scheduler that warms up, such as OneCycleLR or LinearLR"
        yield _problem("train.schedule.warmup_steps", what, fix)
    if schedule.scheduler == "ReduceLROnPlateau" and schedule.interval != "evaluation":
        what = f"{schedule.interval}, and ReduceLROnPlateau looks at a metric of evaluations"
        yield _problem("train.schedule.interval", what, "set it to evaluation")


def _optimizer(optimizer: OptimizerConfig) -> Iterator[Problem]:
    for number, rule in enumerate(optimizer.rules):
        key = f"train.optimizer.rules.{number}"
        given = [name for name in ("lr_factor", "weight_decay") if getattr(rule, name) is not None]
        if rule.freeze and given:
            what = f"freezes '{rule.pattern}' and gives it {given[0]} as well"
            yield _problem(key, what, "keep one of them: what is frozen has no update")


def _evaluation(config: RunConfig) -> Iterator[Problem]:
    """What watches an evaluation, where there is nothing to evaluate."""
    data = config.data
    if data is None:
        return
    key = {"random_tokens": "num_eval_rows", "datasets": "eval_split"}.get(data.kind, "eval")
    if getattr(data, key) or getattr(data, "eval_fraction", 0):
        return
    if config.evaluate.early_stopping is not None:
        fix = f"give held-out data as data.{key}, or set evaluate.early_stopping to null"
        yield _problem("evaluate.early_stopping", f"watches an evaluation, and data.{key} has nothing to evaluate", fix)
    if config.train.schedule.interval == "evaluation":
        what = f"evaluation, and data.{key} has nothing to evaluate: the rate would never change"
        fix = f"give held-out data as data.{key}, or set it to update or epoch"
        yield _problem("train.schedule.interval", what, fix)


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
    asked, kind = config.hardware.num_processes, config.parallel.kind
    if kind == "data_parallel":
        return  # parallel_problems says what it needs
    if world is not None and asked not in (None, world.local_size) and devices.device == "cpu":
        what = f"asks for {asked}, but {world.source} started {world.local_size} on this machine"
        fix = f"start it by: drumline launch script.py, or set hardware.num_processes to {world.local_size}"
        yield _problem("hardware.num_processes", what, fix)
    if kind == "single" and devices.size > 1:
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


def _gradient_noise(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    """The noise is told from the gradients of two batch sizes; one shard with one micro-batch has a single one."""
    train = config.train
    if train.batch_size_per_gpu is not None:
        several = (train.gradient_accumulation_steps or 1) > 1
    elif train.micro_batch == "auto" or train.global_batch is None:
        several = False
    else:
        several = train.micro_batch < train.global_batch
    if config.track.gradient_noise and devices.num_shards == 1 and not several:
        what = "compares two batch sizes, and here one process computes each update in one micro-batch"
        fix = "set train.micro_batch to at most half of train.global_batch, or leave it off"
        yield _problem("track.gradient_noise", what, fix)


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
