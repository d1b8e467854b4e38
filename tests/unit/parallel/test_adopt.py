"""What an update takes over of somebody else's optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drumline.parallel.adopt import ADOPTED, adopted
from drumline.parallel.update import Update
from tests.unit.parallel.updates import assert_same, constant, new_parameters, set_gradients


def update_of(**settings: Any) -> Update:
    """Of a fused SGD, whose momentum is there from the beginning."""
    return Update(
        torch.optim.SGD(new_parameters(), fused=True, **{"lr": 0.1, "momentum": 0.9, **settings}), constant(), None
    )


def theirs(*, first_alone: bool = False) -> torch.optim.Optimizer:
    """A plain SGD after an update, of the first parameter alone if asked for."""
    parameters = new_parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.7, momentum=0.5)
    set_gradients(parameters[:1] if first_alone else parameters, 1)
    optimizer.step()
    return optimizer


def given(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"optimizer": optimizer.state_dict(), ADOPTED: True}


def test_it_takes_what_is_known_of_each_parameter_and_keeps_its_settings() -> None:
    update, other = update_of(), theirs()
    update.load(adopted(update, given(other)))
    state = update.optimizer.state_dict()
    assert_same(state["state"], other.state_dict()["state"])
    (group,) = state["param_groups"]
    assert (group["lr"], group["momentum"], group["fused"]) == (0.1, 0.9, True)


def test_what_the_other_does_not_know_begins_as_it_would_have() -> None:
    update, other = update_of(), theirs(first_alone=True)
    unknown = other.state_dict()
    unknown["state"].setdefault(1, {})["momentum_buffer"] = None
    for optimizer in (other.state_dict(), unknown):
        update.load(adopted(update, {"optimizer": optimizer, ADOPTED: True}))
        first, second = (
            update.optimizer.state[p]["momentum_buffer"] for p in update.optimizer.param_groups[0]["params"]
        )
        assert_same(first, other.state_dict()["state"][0]["momentum_buffer"])
        assert_same(second, torch.zeros(3, dtype=torch.float64))


def test_a_run_that_goes_on_is_given_all_of_its_own() -> None:
    learner = {"optimizer": {}, "completed": 3}
    assert adopted(update_of(), learner) is learner


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state["param_groups"].append(state["param_groups"][0]), "its groups have"),
        (lambda state: state["param_groups"][0].update(params=[1, 0]), "in another order"),
        (lambda state: state["param_groups"][0].update(betas=(0.9, 0.99)), "of another kind: it has betas"),
        (lambda state: state["state"].update({7: {}}), "by the numbers of parameters"),
        (lambda state: state["state"][1].update(momentum_buffer=torch.zeros(4)), "momentum_buffer of parameter 1"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, why: str) -> None:
    state = theirs().state_dict()
    change(state)
    with pytest.raises(ValueError, match=why):
        adopted(update_of(), {"optimizer": state, ADOPTED: True})
