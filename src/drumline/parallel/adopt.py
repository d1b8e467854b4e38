"""What an optimizer takes over of one that belonged to another run, or to somebody else's program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from drumline.parallel.update import Update, local_part

ADOPTED = "adopted"
"""Key of a learner's state whose optimizer is another's: it gives what it knew of each parameter, and nothing else."""

HOW = frozenset(
    {"params", "param_names", "initial_lr", "foreach", "fused", "capturable", "differentiable", "maximize"}
    | {"decoupled_weight_decay"}
)
"""Of a group's settings those that do not tell one kind of optimizer from another."""


def adopted(update: Update, learner: Mapping[str, Any]) -> Mapping[str, Any]:
    """A learner's state as `Update.load` takes it; groups, rates and counters of an adopted one are this run's.

    Raises ValueError where groups, shapes or kind of the optimizer are others.
    """
    if not learner.get(ADOPTED):
        return learner
    mine, saved = update.optimizer.state_dict(), learner["optimizer"]
    check_groups(mine["param_groups"], saved["param_groups"])
    check_shapes(update.optimizer, saved["state"])
    # What the other has not come to know yet stays as this run began it: some kernels want it to be there.
    known = {
        number: {name: value for name, value in values.items() if value is not None}
        for number, values in saved["state"].items()
    }
    numbers = mine["state"].keys() | known.keys()
    state = {number: {**mine["state"].get(number, {}), **known.get(number, {})} for number in sorted(numbers)}
    return {**update.state(), "optimizer": {"state": state, "param_groups": mine["param_groups"]}}


def check_groups(mine: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """Raise ValueError where they hold other numbers of parameters, or have other settings."""
    sizes, theirs = ([len(group["params"]) for group in groups] for groups in (mine, saved))
    if sizes != theirs:
        raise ValueError(f"its groups have {theirs} parameters, this run's {sizes}")
    for own, other in zip(mine, saved, strict=True):
        if own["params"] != other["params"]:
            raise ValueError("it counts its parameters in another order")
        if (own.keys() ^ other.keys()) - HOW:
            names, others = sorted(own.keys() - HOW), sorted(other.keys() - HOW)
            raise ValueError(f"it is of another kind: it has {', '.join(others)}, this run's {', '.join(names)}")


def check_shapes(optimizer: Optimizer, state: Mapping[Any, Mapping[str, Any]]) -> None:
    """Raise ValueError where something of the size of a parameter has another shape than that."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    by_rows: frozenset[str] = getattr(type(optimizer), "row_states", frozenset())
    if any(number not in range(len(parameters)) for number in state):
        raise ValueError("its state is not by the numbers of parameters")
    for number, values in state.items():
        shape = local_part(parameters[number]).shape
        for name, value in values.items():
            if name in by_rows or not isinstance(value, Tensor) or not value.dim():
                continue
            if local_part(value).shape != shape:
                found = list(value.shape)
                raise ValueError(f"its {name} of parameter {number} is {found}, and the parameter {list(shape)}")
