"""State of a sharded run: whole tensors on the CPU, as every strategy saves and loads, or each rank's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from drumline.parallel.fsdp_model import ShardedModel
from drumline.parallel.fsdp_shards import Shard
from drumline.parallel.parts import Part
from drumline.parallel.update import local_part

Optimizers = Mapping[str, Optimizer]
"""By learner."""


def saved(state: Mapping[str, Any], sharded: ShardedModel, optimizers: Optimizers, *, keep: bool) -> dict[str, Any]:
    """Put the parts together, one tensor at a time; all ranks call it, and get the result where they `keep` it.

    state: what `Single.state` gives.
    """

    def join(part: Tensor, shape: torch.Size) -> Tensor | None:
        whole = sharded.layout.join(local_part(part), shape)
        return whole.cpu() if keep else None

    return with_shards(state, sharded, optimizers, join)


def in_parts(state: Mapping[str, Any], sharded: ShardedModel, optimizers: Optimizers) -> dict[str, Any]:
    """What `Single.state` gives, with a Part in the place of what is sharded; no rank waits for another."""

    def part(tensor: Tensor, shape: torch.Size) -> Part:
        return Part(local_part(tensor), shape, sharded.layout.begin(shape))

    return with_shards(state, sharded, optimizers, part)


Change = Callable[[Tensor, torch.Size], Any]
"""From this rank's part of a tensor and the whole one's shape."""


def with_shards(
    state: Mapping[str, Any], sharded: ShardedModel, optimizers: Optimizers, change: Change
) -> dict[str, Any]:
    """What `Single.state` gives, with a change to all that is sharded."""
    names = sharded.all_names()
    weights: dict[int, Any] = {}

    def weight(name: str, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        shard = names.get(name)
        if shard is None:  # a name that the model's own hook has given it
            return change(value, value.shape)
        if id(shard) not in weights:  # what is tied is one tensor in the file too
            weights[id(shard)] = change(value, value.shape)
        return weights[id(shard)]

    average = state["average"]
    if average is not None:
        averages = {
            name: change(value, names[name].sharded.shape) if name in names else value
            for name, value in average["averages"].items()
        }
        average = {**average, "averages": averages}
    return {
        **state,
        "model": {name: weight(name, value) for name, value in state["model"].items()},
        "average": average,
        "learners": {
            name: with_kept(learner, optimizers[name], sharded, lambda part, like, shape: change(part, shape))
            for name, learner in state["learners"].items()
        },
    }


@torch.no_grad()
def loaded(state: Mapping[str, Any], sharded: ShardedModel, optimizers: Optimizers) -> dict[str, Any]:
    """Cut this rank's parts out of what any strategy has saved, in the form that `Single.load` takes.

    A Part stands for itself: of the right shape it is this rank's.
    Weights are put in here already, where they have the right shape; what has not is refused by torch, which names it.
    """
    names, model = sharded.all_names(), dict(state["model"])
    for name, shard in names.items():
        if name in model and model[name].shape == shard.sharded.shape:
            shard.local.copy_(part_of(model[name], sharded))
            model[name] = shard.sharded
    average = state["average"]
    if average is not None:
        averages = {
            name: part_of(value, sharded) if name in names and value.shape == names[name].sharded.shape else value
            for name, value in average["averages"].items()
        }
        average = {**average, "averages": averages}
    learners = {}
    for name, learner in state["learners"].items():
        if name in optimizers:
            learner = with_kept(learner, optimizers[name], sharded, cutter(optimizers[name], sharded))
        learners[name] = learner
    return {**state, "model": model, "average": average, "learners": learners}


def shards_of(optimizer: Optimizer, sharded: ShardedModel) -> list[Shard | None]:
    """Of the optimizer's parameters, in the order in which its state_dict counts them."""
    by_parameter = {p: shard for shard in sharded.shards.values() for p in shard}
    return [by_parameter.get(p) for group in optimizer.param_groups for p in group["params"]]


def part_of(value: Tensor | Part, sharded: ShardedModel) -> Tensor:
    """The part of this rank."""
    return value.tensor if isinstance(value, Part) else sharded.layout.cut(value)


def room_for(state: Mapping[str, Any], sharded: ShardedModel, optimizers: Optimizers) -> dict[str, Any]:
    """A state of tensors on the meta device, with memory for this rank's part in the place of each that is sharded.

    What is tied has one Part, on the CPU.
    """
    names, layout = sharded.all_names(), sharded.layout
    rooms: dict[int, Part] = {}

    def room(whole: Tensor) -> Part:
        if id(whole) not in rooms:
            part = torch.empty(layout.cut(whole).shape, dtype=whole.dtype)
            rooms[id(whole)] = Part(part, whole.shape, layout.begin(whole.shape))
        return rooms[id(whole)]

    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: room(value) if name in names and value.shape == names[name].sharded.shape else value
            for name, value in values.items()
        }

    average = state["average"]
    learners = {}
    for name, learner in state["learners"].items():
        if name in optimizers:
            learner = with_kept(learner, optimizers[name], sharded, lambda whole, like, shape: room(whole))
        learners[name] = learner
    return {
        **state,
        "model": named(state["model"]),
        "average": None if average is None else {**average, "averages": named(average["averages"])},
        "learners": learners,
    }


def cutter(optimizer: Optimizer, sharded: ShardedModel) -> Callable[[Tensor | Part, DTensor, torch.Size], Tensor]:
    """How a whole tensor becomes what this optimizer keeps of a parameter: a part, or a DTensor like the parameter."""
    takes_parts = sharded.takes_parts(optimizer)

    def cut(whole: Tensor | Part, like: DTensor, shape: torch.Size) -> Tensor:
        part = part_of(whole, sharded).clone()
        if takes_parts:
            return part
        return DTensor.from_local(
            part.to(sharded.home), like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        )

    return cut


def with_kept(
    learner: Mapping[str, Any],
    optimizer: Optimizer,
    sharded: ShardedModel,
    change: Callable[[Any, Any, torch.Size], Any],
) -> dict[str, Any]:
    """A learner's state, with a change to all that its optimizer keeps in the shape of a parameter, or by its rows.

    change: from a value, the parameter, and the value's shape in the whole. What goes by rows has the parameter's first
    dimension and others of its own; the optimizer's class names it in `row_states`.
    """
    shards = shards_of(optimizer, sharded)
    by_rows: frozenset[str] = getattr(type(optimizer), "row_states", frozenset())

    def changed(key: str, value: Any, shard: Shard | None) -> Any:
        if shard is None or not isinstance(value, Tensor | Part) or not value.dim():
            return value
        whole, local = shard.sharded.shape, shard.local.shape
        if key in by_rows and value.shape[0] in (whole[0], local[0]):
            return change(value, shard.sharded, torch.Size([whole[0], *value.shape[1:]]))
        return change(value, shard.sharded, whole) if value.shape in (whole, local) else value

    kept = {
        index: {key: changed(key, value, shards[index]) for key, value in values.items()}
        if index < len(shards)
        else values
        for index, values in learner["optimizer"]["state"].items()
    }
    return {**learner, "optimizer": {**learner["optimizer"], "state": kept}}
