"""Assembles a Run from what a user handed in: world, plan, groups, strategy, feeds, run directory."""

from __future__ import annotations

import datetime
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline import __version__
from drumline.config.load import dump_config
from drumline.config.schema import RunConfig
from drumline.data.source import Source
from drumline.engine.balance import measure_balance
from drumline.engine.checkpoint import Checkpointer
from drumline.engine.choices import Chooser
from drumline.engine.ending import let_go, release, tell
from drumline.engine.facts import agreed, planned
from drumline.engine.feeds import open_feeds, with_loader
from drumline.engine.foreign import load_initial
from drumline.engine.hang import Pulse
from drumline.engine.learners import loader_task
from drumline.engine.learning import optimizer_maker, rates
from drumline.engine.optimizer import freeze
from drumline.engine.pending import Pending
from drumline.engine.preflight import find_sizes
from drumline.engine.profiling import Profile
from drumline.engine.recorder import start_recorder
from drumline.engine.resume import Place, bound_config, look, make_directory, resume, tell_changes
from drumline.engine.run import Run
from drumline.engine.strategies import make_strategy
from drumline.errors import ConfigError
from drumline.hardware.inventory import detect
from drumline.hardware.peaks import peak_flops
from drumline.hardware.records import Hardware
from drumline.launcher.gpus import doubts, own_hardware
from drumline.launcher.world import World, accelerate_precision
from drumline.models.flops import training_flops_per_unit
from drumline.models.folder import keep_shape
from drumline.parallel.averaging import Average
from drumline.parallel.groups import bind_devices, open_groups, own_positions, started_world
from drumline.parallel.positions import positions_of
from drumline.parallel.strategy import Learner, MakeAverage, Scheduler, Task
from drumline.plan.record import Plan
from drumline.rundir import LineWriter, RunDir, read_json, write_atomic, write_json
from drumline.track.console import describe
from drumline.track.open import check_trackers, open_trackers
from drumline.track.protocol import Tracker

logger = logging.getLogger("drumline")

Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class Parts:
    """What a user handed in, in the forms that the engine uses."""

    config: RunConfig
    model: nn.Module
    tasks: Mapping[str, Task]
    """By learner, in the order in which they take turns."""
    train: Source
    evaluation: Source | None
    optimizers: Mapping[str, Optimizer | Callable[[nn.Module], Optimizer] | None]
    schedulers: Mapping[str, Scheduler | None]
    world: World | None = None
    directory: RunDir | None = None
    """A run directory that the command has prepared; None: one is made."""
    trackers: tuple[Tracker, ...] = field(default=())


def start_run(parts: Parts) -> Run:
    """Decide, meet the other ranks, and put everything in place for the first window."""
    world = parts.world or started_world()
    visible = detect()
    hardware = own_hardware(parts.config.hardware, visible, world)
    config = with_launcher_precision(with_loader(parts.config, parts.train))
    plan = planned(parts, config, hardware, world)
    tell_of_doubts(config, plan, hardware, world)
    tell_of_idle_gpus(config, plan, hardware, world)
    learners = make_learners(parts, config, plan)
    positions = positions_of(plan.gpus, visible) if plan.device == "cuda" else None
    devices = bind_devices(world, positions, plan.num_shards // plan.world_size, config.hardware.memory_fraction)
    groups = open_groups(world, devices[0], plan.backend, config.parallel.timeout_s)
    groups.devices = devices
    place, pulse = None, Pulse(groups, config.faults.hang_timeout_s)
    try:
        place = look(groups, config, parts.directory, default_name())
        bound = bound_config(config, place)
        if bound != config:
            config, plan = bound, planned(parts, bound, hardware, world)
            learners = make_learners(parts, config, plan)
        with pulse.watching():
            return assemble(parts, config, agreed(plan, config, groups), pulse, learners, place)
    except BaseException as error:
        if place is not None:
            place.release()
        told = tell(groups.world, groups.side, error)
        let_go(error)
        groups.abort()
        if told.peer is not None:
            raise told.peer from error
        raise


def assemble(
    parts: Parts, config: RunConfig, plan: Plan, pulse: Pulse, learners: Mapping[str, Learner], place: Place
) -> Run:
    """Set up model, optimizer and feeds, go on from what an earlier attempt has saved, and write what the run is."""
    assert pulse.groups is not None
    groups = pulse.groups
    device = groups.device
    if groups.world.rank == 0:
        check_trackers(config.track)
    strategy = make_strategy(groups, config, plan)
    freeze(parts.model, config.train.optimizer)
    strategy.setup(parts.model, learners, average_maker(config, plan))
    task = loader_task(parts.tasks)
    chooser = Chooser(strategy, parts.model, parts.train, task, config, groups)
    chooser.choose_compiler(plan)
    sizes = find_sizes(parts, strategy, config, plan, groups)
    plan = sizes.planned(plan)
    chooser.choose_attention(plan)
    balance = measure_balance(strategy, parts.model, parts.train, task, config, plan, groups)
    feeds = open_feeds(parts.train, parts.evaluation, task, sizes.stated(config), plan, groups, balance.weights)
    # Last, so that what is refused above leaves no directory that the next attempt would find in its way.
    directory = make_directory(groups, place)
    run = Run(
        config=config,
        plan=plan,
        groups=groups,
        directory=directory,
        model=parts.model,
        tasks=parts.tasks,
        strategy=strategy,
        feed=feeds.train,
        evaluation_feed=feeds.evaluation,
        pending=Pending(device),
        flops_per_unit=training_flops_per_unit(parts.model),
        profile=None if config.train.profile is None else Profile(config.train.profile, device),
        checkpoints=Checkpointer(config.checkpoint, groups, directory, plan.kind),
        pulse=pulse,
        peak_flops=peak_flops(torch.cuda.get_device_name(device), plan.precision) if device.type == "cuda" else None,
    )
    try:
        begin(run, parts, place)
        sizes.settle(run)
        if feeds.notice is not None:
            run.event("loader", **feeds.notice)
        if chooser.choices.facts:
            run.event("choices", message="; ".join(chooser.choices.messages), **chooser.choices.facts)
        if balance.facts is not None:
            run.event("balance", **balance.facts)
        run.recorder = start_recorder(run)
    except BaseException:
        release(run)
        raise
    return run


def begin(run: Run, parts: Parts, place: Place) -> None:
    """Go on where an earlier attempt was, or else begin; all ranks call it."""
    run.lock = place.lock
    run.progress.rows = parts.train.rows_per_epoch
    if run.is_rank_zero:
        run.events = LineWriter(run.directory.events)
        run.event("start", world_size=run.groups.world.size, launcher=run.groups.world.source)
    step = None if place.kept is None else resume(run, place.kept)
    if step is None and run.config.checkpoint.initial is not None:
        load_initial(run, run.config.checkpoint.initial)
    if run.is_rank_zero:
        write_start(run, parts, place, step)


def tell_of_doubts(config: RunConfig, plan: Plan, hardware: Hardware, world: World) -> None:
    """Warn of this process's GPUs that are sick or taken, where no launcher of ours has looked at them."""
    if plan.gpus:
        mine = own_positions(world, range(len(plan.gpus)), plan.num_shards // plan.world_size)
        for doubt in doubts(config.hardware, hardware, [plan.gpus[index] for index in mine]):
            logger.warning("%s", doubt)


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


def average_maker(config: RunConfig, plan: Plan) -> MakeAverage | None:
    """How the running average of the weights comes to be, if there is to be one."""
    settings = config.train.averaging
    return None if settings is None else lambda model: Average(model, settings, plan.steps)


def make_learners(parts: Parts, config: RunConfig, plan: Plan) -> dict[str, Learner]:
    """Each task with its optimizer and rates. Raises ConfigError for a schedule that would never move."""
    learners = {}
    for name, task in parts.tasks.items():
        optimizer, scheduler = parts.optimizers[name], parts.schedulers[name]
        rules = rates(scheduler, optimizer, config, plan)
        if rules.make_scheduler is not None and rules.interval == "evaluation" and parts.evaluation is None:
            raise ConfigError(
                "the schedule moves on at each evaluation, and there is no evaluation data",
                "give eval_data= to the trainer (data.eval in the recipe), or set train.schedule.interval to epoch",
            )
        learners[name] = Learner(task, optimizer_maker(optimizer, config), rules)
    return learners


def default_name() -> str:
    """Script, date and time."""
    stem = Path(sys.argv[0]).stem.strip("-_") or "run"
    return f"{stem}-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')[:-3]}"


def write_start(run: Run, parts: Parts, place: Place, step: int | None) -> None:
    """Write what the run is before it begins, and open its trackers. step: after which it goes on; None: it begins."""
    directory = run.directory
    if parts.directory is None:
        write_atomic(directory.config, dump_config(place.config))
        write_json(directory.env, environment(run))
    plan = run.plan if parts.directory is None else with_choice(run.plan, directory)
    write_json(directory.plan, plan.to_json())
    keep_shape(run.model, directory.model)
    if place.kept is not None:
        tell_changes(run, place.kept.changes)
    run.event("plan", message=describe(run.plan, run.plan.steps))
    for name, reason in run.plan.reasons.items():
        logger.info("plan: %s is %s: %s", name, getattr(run.plan, name), reason)
    run.trackers = open_trackers(run.config.track, directory, parts.trackers, run.event, step)
    for tracker in run.trackers:
        tracker.start(run.plan, run.plan.steps)


def with_choice(plan: Plan, directory: RunDir) -> Plan:
    """The plan with what the launcher said of its choice of GPUs: it alone has seen those that it left out."""
    if not plan.gpus or not directory.plan.exists():
        return plan
    before = read_json(directory.plan)
    why = before["reasons"].get("gpus") if tuple(before["gpus"]) == plan.gpus else None
    return plan if why is None else replace(plan, reasons={**plan.reasons, "gpus": why})


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
