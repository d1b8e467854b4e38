"""Assembles a Run from what a user handed in: world, plan, groups, strategy, feeds, run directory."""

from __future__ import annotations

import datetime
import logging
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline import __version__
from drumline.config.load import dump_config
from drumline.config.parallel import DdpParallel
from drumline.config.schema import RunConfig
from drumline.data.source import Source
from drumline.engine.ending import let_go, tell
from drumline.engine.feeds import evaluation_feed, training_feed, with_loader
from drumline.engine.optimizer import make_optimizer
from drumline.engine.pending import Pending
from drumline.engine.records import Callback
from drumline.engine.run import Run
from drumline.errors import ConfigError, DrumlineError, RunDirExists
from drumline.hardware.inventory import detect
from drumline.hardware.peaks import peak_flops
from drumline.hardware.records import Hardware
from drumline.launcher.world import World, accelerate_precision
from drumline.models.flops import training_flops_per_unit
from drumline.parallel.ddp import Ddp
from drumline.parallel.groups import Groups, bind_device, open_groups, started_world
from drumline.parallel.single import Single
from drumline.parallel.strategy import Rates, Strategy, Task
from drumline.plan.record import Plan
from drumline.plan.resolve import resolve
from drumline.plan.schedule import lr_factor
from drumline.rundir import LineWriter, RunDir, write_atomic, write_json
from drumline.track.console import ConsoleTracker, describe
from drumline.track.jsonl import JsonlTracker
from drumline.track.protocol import Tracker

logger = logging.getLogger("drumline")

Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class Parts:
    """What a user handed in, in the forms that the engine uses."""

    config: RunConfig
    model: nn.Module
    task: Task
    train: Source
    evaluation: Source | None
    optimizer: Optimizer | Callable[[nn.Module], Optimizer] | None = None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    callbacks: tuple[Callback, ...] = ()
    world: World | None = None
    directory: RunDir | None = None
    """A run directory that the command has prepared; None: one is made."""
    trackers: tuple[Tracker, ...] = field(default=())


def start_run(parts: Parts) -> Run:
    """Decide, meet the other ranks, and put everything in place for the first window."""
    world = parts.world or started_world()
    hardware = detect()
    config = with_launcher_precision(with_loader(parts.config, parts.train))
    plan = resolve(config, hardware, world, parts.train.num_rows)
    tell_of_idle_gpus(config, plan, hardware, world)
    rules = rates(parts, config, plan)
    device = bind_device(world, plan.device, config.hardware.memory_fraction)
    groups = open_groups(world, device, plan.backend, config.parallel.timeout_s)
    try:
        return assemble(parts, config, plan, groups, rules)
    except BaseException as error:
        told = tell(groups, error)
        let_go(error)
        groups.abort()
        if told.peer is not None:
            raise told.peer from error
        raise


def assemble(parts: Parts, config: RunConfig, plan: Plan, groups: Groups, rules: Rates) -> Run:
    """Set up model, optimizer and feeds, and write the beginning of the run directory."""
    world, device = groups.world, groups.device
    strategy = make_strategy(groups, config, plan)
    strategy.setup(parts.model, parts.task, optimizer_maker(parts, config), rules)
    feed = training_feed(parts.train, parts.task, config, plan, world)
    evaluation = None
    if parts.evaluation is not None:
        evaluation = evaluation_feed(parts.evaluation, parts.task, config, plan, world)
    # Last, so that what is refused above leaves no directory that the next attempt would find in its way.
    directory = agree_on_directory(groups, config, parts.directory)
    run = Run(
        config=config,
        plan=plan,
        groups=groups,
        directory=directory,
        model=parts.model,
        task=parts.task,
        strategy=strategy,
        feed=feed,
        evaluation_feed=evaluation,
        pending=Pending(device),
        flops_per_unit=training_flops_per_unit(parts.model),
        peak_flops=peak_flops(torch.cuda.get_device_name(device), plan.precision) if device.type == "cuda" else None,
    )
    if run.is_rank_zero:
        write_start(run, parts)
    return run


def tell_of_idle_gpus(config: RunConfig, plan: Plan, hardware: Hardware, world: World) -> None:
    """Say on the screen how to use all GPUs where `python script.py` uses one of them and nobody asked for that."""
    asked = config.hardware.gpus is not None or config.parallel.kind == "single"
    if world.size == 1 and world.source == "python" and 0 < len(plan.gpus) < len(hardware.gpus) and not asked:
        logger.warning("%s", plan.reasons["world_size"])


def with_launcher_precision(config: RunConfig) -> RunConfig:
    """Take the precision that `accelerate launch` was given; a conflict with the config is refused."""
    given = accelerate_precision()
    if given is None or config.train.precision == given:
        return config
    if config.train.precision != "auto":
        raise ConfigError(
            f"accelerate launch says mixed precision {given}, the config says {config.train.precision}",
            "say it once: drop --mixed_precision, or set train.precision to auto",
        )
    return config.model_copy(update={"train": config.train.model_copy(update={"precision": given})})


def make_strategy(groups: Groups, config: RunConfig, plan: Plan) -> Strategy:
    """The strategy that the plan names."""
    if plan.kind == "ddp" and groups.train is not None:
        settings = config.parallel if isinstance(config.parallel, DdpParallel) else DdpParallel()
        return Ddp(groups, settings, plan.precision, config.train.compile)
    return Single(groups.device, plan.precision, config.train.compile)


def optimizer_maker(parts: Parts, config: RunConfig) -> Callable[[nn.Module], Optimizer]:
    """How the optimizer comes to be, once the model is where it trains."""
    given = parts.optimizer
    if given is None:
        return lambda model: make_optimizer(model, config.train)
    if not isinstance(given, Optimizer):
        return given
    own = {id(p) for p in parts.model.parameters()}
    if not any(id(p) in own for group in given.param_groups for p in group["params"]):
        raise ConfigError(
            "the optimizer holds none of the model's parameters, so nothing would be trained",
            "make it from the parameters of the model that is handed in, after the last change to that model",
        )
    return lambda model: given


def rates(parts: Parts, config: RunConfig, plan: Plan) -> Rates:
    """Where learning rates come from: a ready scheduler, a ready optimizer's own rate, or the config's schedule.

    Raises ConfigError for a schedule that needs the run's length where that is not known.
    """
    skippable = config.train.non_finite == "skip" or plan.precision == "fp16"
    schedule, total = config.train.schedule, plan.steps
    if parts.scheduler is not None or isinstance(parts.optimizer, Optimizer):
        return Rates(None, total, parts.scheduler, skippable)
    lr_factor(schedule, 0, total)
    return Rates(lambda step: lr_factor(schedule, step, total), total, None, skippable)


def agree_on_directory(groups: Groups, config: RunConfig, prepared: RunDir | None) -> RunDir:
    """Let rank 0 make the run directory; every rank learns its path, or the same refusal."""
    if prepared is not None:
        return prepared
    answer: dict[str, str] = {}
    if groups.world.rank == 0:
        path = config.run_dir or Path("runs") / (config.name or default_name())
        try:
            answer = {"path": str(RunDir.create(path).path)}
        except DrumlineError as error:
            answer = {"problem": error.problem, "fix": error.fix}
        except OSError as error:
            answer = {"problem": f"the run directory {path} cannot be made: {error}", "fix": "choose another run_dir"}
    (answer, *_) = groups.side.exchange("run directory", answer)
    if "problem" in answer:
        raise RunDirExists(answer["problem"], answer["fix"])
    return RunDir(Path(answer["path"]))


def default_name() -> str:
    """Script, date and time."""
    stem = Path(sys.argv[0]).stem.strip("-_") or "run"
    return f"{stem}-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')[:-3]}"


def write_start(run: Run, parts: Parts) -> None:
    """Write what the run is before it begins, and open its trackers."""
    directory = run.directory
    write_atomic(directory.config, dump_config(run.config))
    write_json(directory.plan, run.plan.to_json())
    if not directory.env.exists():
        write_json(directory.env, environment(run))
    run.events = LineWriter(directory.events)
    run.event("start", world_size=run.groups.world.size, launcher=run.groups.world.source)
    run.event("plan", message=describe(run.plan, run.plan.steps))
    for name, reason in run.plan.reasons.items():
        logger.info("plan: %s is %s: %s", name, getattr(run.plan, name), reason)
    run.trackers = (JsonlTracker(directory.metrics), *parts.trackers)
    if run.config.track.console:
        run.trackers = (*run.trackers, ConsoleTracker())
    for tracker in run.trackers:
        tracker.start(run.plan, run.plan.steps)


def environment(run: Run) -> dict[str, Any]:
    """Versions and device of a run that no command prepared."""
    device = run.groups.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "drumline": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "platform": platform.platform(),
    }
