"""Where optimizers and learning rates come from: the config, or what a user hands in ready."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from drumline.config.problem import listed
from drumline.config.schema import RunConfig
from drumline.config.train import ScheduleConfig
from drumline.engine.optimizer import make_optimizer
from drumline.errors import ConfigError
from drumline.parallel.ready import ReadyOptimizer
from drumline.parallel.strategy import MakeOptimizer, Rates, Scheduler
from drumline.plan.record import Plan
from drumline.plan.schedule import lr_factor

logger = logging.getLogger("drumline")

NEED_CODE = {
    "LambdaLR": "functions",
    "MultiplicativeLR": "functions",
    "SequentialLR": "other schedulers",
    "ChainedScheduler": "other schedulers",
}
"""Schedulers whose arguments no config can hold, and what these are."""

LENGTHS = ("total_steps", "T_max", "total_iters")
"""Attributes of torch's schedulers that say how many moves their shape takes."""

NOT_OPTIONS = ("optimizer", "last_epoch", "scale_fn", "verbose")
"""Arguments of schedulers that are given by the run, or that a config cannot hold."""


def optimizer_maker(given: Optimizer | MakeOptimizer | None, config: RunConfig) -> MakeOptimizer:
    """How the optimizer comes to be, once the model is where it trains.

    Raises ConfigError where one is handed in beside settings for groups of parameters, which only our own has; what is
    returned raises it for a ready one that holds none of the model's parameters.
    """
    if given is None:
        return lambda model: make_optimizer(model, config.train)
    settings = config.train.optimizer
    if settings.state_precision != "same":
        raise ConfigError(
            "train.optimizer.state_precision is for the optimizer that the config makes, and another one was handed in",
            "leave optimizer= out, or train.optimizer.state_precision",
        )
    grouped = any(rule.lr_factor is not None or rule.weight_decay is not None for rule in settings.rules)
    if grouped or settings.layer_decay != 1:
        raise ConfigError(
            f"train.optimizer.{'rules' if grouped else 'layer_decay'} is for the optimizer that the config makes, and "
            "another one was handed in",
            "leave optimizer= out, or make its parameter groups yourself (rules may still freeze)",
        )
    return given if not isinstance(given, Optimizer) else ReadyOptimizer(given)


def check_scheduler(scheduler: object, optimizer: object) -> None:
    """Raise ConfigError for what is no scheduler of torch's, or not one on the optimizer that is handed in."""
    if scheduler is None:
        return
    if not isinstance(scheduler, lr_scheduler.LRScheduler | lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            f"a {type(scheduler).__name__} was handed in as scheduler=", "make it with torch.optim.lr_scheduler"
        )
    if not isinstance(optimizer, Optimizer):
        raise ConfigError("a scheduler was handed in without its optimizer", "give optimizer= too")
    if getattr(scheduler, "optimizer", None) is not optimizer:
        raise ConfigError("the scheduler is another optimizer's", "make it on the optimizer that is handed in")


def rates(
    given_scheduler: Scheduler | None, given_optimizer: Optimizer | MakeOptimizer | None, config: RunConfig, plan: Plan
) -> Rates:
    """Where learning rates come from: a ready scheduler, torch's by name, the optimizer's own rate, or our schedule.

    Raises ConfigError for a schedule that needs the run's length where that is not known, for one that ends before the
    run does, and for what cannot be meant. A ready optimizer has its own rate, unless the config names a scheduler.
    """
    skippable = config.train.non_finite == "skip" or plan.precision == "fp16"
    schedule, total = config.train.schedule, plan.steps
    moves = planned_moves(config, plan)
    if given_scheduler is not None:
        if schedule.name == "torch":
            raise ConfigError(
                f"a scheduler was handed in, and train.schedule.scheduler is {schedule.scheduler}", "keep one of them"
            )
        check_interval(type(given_scheduler).__name__, schedule)
        check_length(given_scheduler, schedule, moves)
        return Rates(None, total, lambda optimizer: given_scheduler, schedule.interval, skippable)
    if schedule.name == "torch":
        make = scheduler_maker(schedule, moves)
        return Rates(None, total, make, schedule.interval, skippable)
    if schedule.interval != "update":
        raise ConfigError(
            f"train.schedule.interval is {schedule.interval}, and the schedule {schedule.name} moves with each update",
            "leave train.schedule.interval out, or take a scheduler of torch's (train.schedule.name: torch)",
        )
    if isinstance(given_optimizer, Optimizer):
        return Rates(None, total, None, "update", skippable)
    lr_factor(schedule, 0, total)
    return Rates(lambda step: lr_factor(schedule, step, total), total, None, "update", skippable)


def scheduler_maker(schedule: ScheduleConfig, moves: int | None) -> Callable[[Optimizer], Scheduler]:
    """How the scheduler that the config names is made on an optimizer.

    Raises ConfigError for a name or an option that torch does not have; what is returned for values it does not take.
    """
    kind = scheduler_class(schedule.scheduler or "")
    check_interval(kind.__name__, schedule)
    accepted = [name for name in inspect.signature(kind).parameters if name not in NOT_OPTIONS]
    for name in schedule.options:
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"train.schedule.options.{name}: {kind.__name__} has no such option",
                f"{meant}it takes {listed(accepted, 'and')}",
            )

    def make(optimizer: Optimizer) -> Scheduler:
        try:
            try_out(kind, schedule.options, optimizer)
            scheduler: Scheduler = kind(optimizer, **schedule.options)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(
                f"train.schedule.options: {kind.__name__} cannot be made with them: {error}",
                f"it takes {listed(accepted, 'and')}",
            ) from error
        check_length(scheduler, schedule, moves)
        return scheduler

    try:
        inspect.signature(kind).bind(None, **schedule.options)
    except TypeError as error:
        raise ConfigError(f"train.schedule.options: {kind.__name__}: {error}", "give it there") from error
    return make


def try_out(kind: type[Any], options: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Move such a scheduler on once, on an optimizer of no consequence: some options are first looked at then."""
    groups = [{"params": [torch.zeros(1)], "lr": float(group["lr"])} for group in optimizer.param_groups]
    twin = torch.optim.SGD(groups, momentum=0.9)
    scheduler = kind(twin, **options)
    twin.step()
    scheduler.step(*([0.0] if kind is lr_scheduler.ReduceLROnPlateau else []))


def scheduler_class(name: str) -> type[Any]:
    """The class of torch.optim.lr_scheduler with this name, if a config can hold its arguments."""
    if name in NEED_CODE:
        raise ConfigError(
            f"train.schedule.scheduler: {name} is made of {NEED_CODE[name]}, which a config cannot hold",
            "make it in a script and hand it in as scheduler=, with its optimizer",
        )
    known = [
        key
        for key, value in vars(lr_scheduler).items()
        if inspect.isclass(value)
        and issubclass(value, lr_scheduler.LRScheduler | lr_scheduler.ReduceLROnPlateau)
        and value is not lr_scheduler.LRScheduler
        and not key.startswith("_")
        and key not in NEED_CODE
    ]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or known
        raise ConfigError(
            f"train.schedule.scheduler: torch.optim.lr_scheduler has no {name or 'name'}", f"such as {listed(near)}"
        )
    found: type[Any] = getattr(lr_scheduler, name)
    return found


def check_interval(name: str, schedule: ScheduleConfig) -> None:
    """Raise ConfigError for a scheduler that looks at a metric where there is none when it moves."""
    if name == "ReduceLROnPlateau" and schedule.interval != "evaluation":
        raise ConfigError(
            f"ReduceLROnPlateau looks at a metric, and train.schedule.interval is {schedule.interval}",
            "set train.schedule.interval to evaluation, and train.schedule.metric to what it looks at",
        )


def planned_moves(config: RunConfig, plan: Plan) -> int | None:
    """How often a scheduler moves in the whole run; None where that is not known."""
    interval = config.train.schedule.interval
    if interval == "update":
        return plan.steps
    if interval == "evaluation":
        return None
    if plan.steps is None or plan.steps_per_epoch is None:
        return config.train.epochs
    return plan.steps // plan.steps_per_epoch


def check_length(scheduler: Scheduler, schedule: ScheduleConfig, moves: int | None) -> None:
    """Compare the scheduler's own length with the run's, where both are known.

    Raises ConfigError where torch would raise in the middle of the run (OneCycleLR past its end); a scheduler that the
    run only sees the beginning of is warned of.
    """
    known = [name for name in LENGTHS if isinstance(getattr(scheduler, name, None), int)]
    if not known or moves is None:
        return
    name, kind = known[0], type(scheduler).__name__
    length, done = int(getattr(scheduler, name)), max(0, scheduler.last_epoch)
    unit = f"{schedule.interval}s"
    if isinstance(scheduler, lr_scheduler.OneCycleLR) and done + moves > length:
        had = f" after the {done} that it has made" if done else ""
        raise ConfigError(
            f"{kind} ends after {length} moves ({name}), and the run makes {moves} {unit}{had}",
            f"set its {name} to {done + moves}",
        )
    if length > done + moves:
        logger.warning(
            "%s is made for %d moves (%s), and the run has %d %s: its rates are the first of that sequence",
            *(kind, length, name, moves, unit),
        )


def watched_metric(schedule: ScheduleConfig, evaluation: Mapping[str, float]) -> float:
    """The value that ReduceLROnPlateau looks at. Raises ConfigError for a metric that the evaluation does not have."""
    if schedule.metric not in evaluation:
        near = difflib.get_close_matches(schedule.metric, evaluation, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"train.schedule.metric: an evaluation gives no {schedule.metric}",
            f"{meant}it gives {listed(sorted(evaluation), 'and')}",
        )
    return float(evaluation[schedule.metric])
