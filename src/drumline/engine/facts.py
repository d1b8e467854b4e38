"""What is counted of a model before its run is planned, and the plan that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parameter import is_lazy

from drumline.config.schema import RunConfig
from drumline.data.samples import like_samples
from drumline.data.source import Source
from drumline.engine.optimizer import fitting, named
from drumline.hardware.records import Hardware
from drumline.launcher.world import World
from drumline.models.facts import FEW, MORE, Case, count_parameters, reason, with_activations
from drumline.parallel.checkpointing import apply_checkpointing
from drumline.parallel.compile import find_blocks
from drumline.parallel.groups import Groups
from drumline.parallel.strategy import Task
from drumline.plan.memory import ModelFacts
from drumline.plan.record import Plan
from drumline.plan.resolve import resolve

if TYPE_CHECKING:
    from drumline.engine.start import Parts


def planned(parts: Parts, config: RunConfig, hardware: Hardware, world: World) -> Plan:
    """The plan of what a user handed in; activations are counted only where they decide.

    That is for `auto` with several processes on GPUs. All ranks count the same.
    """
    rows = parts.train.rows_per_epoch
    facts = known(parts.model, config)
    plan = resolve(config, hardware, world, rows, facts)
    if facts is None or config.parallel.kind != "auto" or plan.device != "cuda" or plan.world_size == 1:
        return plan
    facts = with_passes(facts, parts.model, parts.tasks, parts.train, config, plan.precision)
    return resolve(config, hardware, world, rows, facts)


def agreed(plan: Plan, config: RunConfig, groups: Groups) -> Plan:
    """The plan with the kind that all ranks take: where `auto` came to fsdp on one machine, on all of them.

    Machines with unlike GPUs may differ; all ranks call it.
    """
    if config.parallel.kind != "auto" or plan.world_size == 1:
        return plan
    for answer in groups.side.exchange("kind", {"kind": plan.kind, "why": plan.reasons["kind"]}):
        if answer["kind"] == "fsdp":
            return replace(plan, kind="fsdp", reasons={**plan.reasons, "kind": answer["why"]})
    return plan


def known(model: nn.Module, config: RunConfig) -> ModelFacts | None:
    """What a look at the model tells; None while it has parameters without a shape."""
    if any(is_lazy(p) for p in model.parameters()):
        return None
    return replace(count_parameters(model, frozen_by(config, model)), note="nobody counted them")


def frozen_by(config: RunConfig, model: nn.Module) -> set[int]:
    """Ids of the parameters that the optimizer's rules will freeze."""
    rules = [(p, fitting(config.train.optimizer, names)) for names, p in named(model)]
    return {id(p) for p, fit in rules if fit and fit[-1].freeze}


def with_passes(
    facts: ModelFacts, model: nn.Module, tasks: Mapping[str, Task], source: Source, config: RunConfig, precision: str
) -> ModelFacts:
    """Add the activations: of several learners, which take turns, those of the one that keeps most."""
    try:
        few, more = like_samples(source, (FEW, MORE))
    except Exception as error:  # the run itself will read these rows again, and say it in full
        return replace(facts, note=f"no row could be read: {reason(error)}")
    found = []
    for task in tasks.values():
        counted = count_passes(facts, model, Case(task, few, more, precision), config)
        if counted.activation_bytes is None:
            return counted
        found.append(counted)
    return max(found, key=lambda each: (each.activation_bytes or 0) + each.transient_bytes)


def count_passes(facts: ModelFacts, model: nn.Module, case: Case, config: RunConfig) -> ModelFacts:
    """The activations of one learner, with what activation checkpointing leaves of them."""
    frozen, settings = frozen_by(config, model), config.train.checkpointing
    plain = with_activations(facts, model, case, frozen)
    if plain.activation_bytes is None or settings.kind == "none":
        return plain
    if settings.kind == "budget":
        return replace(plain, activation_bytes=round(plain.activation_bytes * settings.budget))
    if settings.kind == "selective" and settings.every is None:
        return replace(plain, note="at most: how much less selective checkpointing keeps was not counted")
    less = with_activations(facts, model, case._replace(change=partial(apply_checkpointing, settings=settings)), frozen)
    if less.activation_bytes is None:
        return less
    # A block is computed again while all others are still given up; the copies of the weights stay to the end.
    again = round((plain.activation_bytes - less.activation_bytes) / len(find_blocks(model)))
    return replace(less, transient_bytes=less.transient_bytes + again, fixed_bytes=plain.fixed_bytes)
