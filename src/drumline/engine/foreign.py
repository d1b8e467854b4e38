"""A run that begins with weights which another run, or another program, has saved."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drumline.engine.checkpoint import load_checkpoint
from drumline.engine.weight_sources import Foreign, is_ours, newest_of_run, read_weights
from drumline.errors import DataError, DrumlineError
from drumline.models.folder import read_pretrained
from drumline.parallel.adopt import ADOPTED
from drumline.parallel.keys import bare_keys, fitting, tied_names
from drumline.parallel.saved_names import base_problem, only_kept

if TYPE_CHECKING:
    from drumline.engine.run import Run

logger = logging.getLogger("drumline")


def load_any(run: Run, path: Path) -> None:
    """Go on from a checkpoint of ours, or begin with the weights of anything else; all ranks call it."""
    path = path.expanduser()
    if any(run.groups.side.exchange("whose checkpoint", is_ours(path))):
        load_checkpoint(run, path)
    else:
        load_initial(run, path)


def load_initial(run: Run, path: Path) -> None:
    """Give the model these weights, and its optimizer what it had then, where it fits; all ranks call it.

    path: anything that `read_weights` takes, or a run directory, of which the newest valid checkpoint counts. Position,
    rates and schedules are those of this run. Raises DataError on all ranks where one of them cannot read it, and where
    it is not of this model: no weight is loaded then.
    """
    found, weights = None, dict[str, Any]()
    path, problem = path.expanduser(), None
    try:
        source = newest_of_run(path) if run.is_rank_zero else path
    except DataError as error:
        source, problem = path, (error.problem, error.fix)
    source = Path(agreed(run, "initial source", problem, str(source))[0])
    try:
        # One rank of a machine is enough to look at checksums.
        found = read_weights(source, contents=run.groups.world.local_rank == 0)
        weights = weights_for(run.model, found, source)
    except DrumlineError as error:
        problem = (error.problem, error.fix)
    agreed(run, "initial weights", problem, "")
    assert found is not None
    run.strategy.load({"model": weights, "average": None, "learners": {}})
    taken = adopt_optimizer(run, found)
    if run.is_rank_zero:
        logger.info("initial weights: %s (%s)%s", source, found.source, ", with its optimizer's state" if taken else "")
    run.event("initial", path=str(source), source=found.source, epoch=found.epoch, optimizer=taken)


def agreed(run: Run, tag: str, problem: tuple[str, str] | None, mine: str) -> list[str]:
    """Every rank's answer, by rank. Raises DataError on all of them where one has a problem."""
    answers = run.groups.side.exchange(tag, [problem, mine])
    for found, _ in answers:
        if found is not None:
            raise DataError(*found)
    return [each for _, each in answers]


def adopt_optimizer(run: Run, found: Foreign) -> bool:
    """Give this run's optimizer what the other knew of each parameter; where it does not fit, it begins anew."""
    if found.optimizer is None or len(run.tasks) != 1:
        return False
    learner = {"optimizer": kept_apart(found.optimizer, run.groups.device), ADOPTED: True}
    problem = None
    try:
        run.strategy.load({"model": {}, "average": None, "learners": {next(iter(run.tasks)): learner}})
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        problem = f"{error}"
    problems = run.groups.side.exchange("initial optimizer", problem)
    if all(answer is None for answer in problems):
        return True
    told = next(answer for answer in problems if answer is not None)
    if any(answer is None for answer in problems):
        raise DataError(f"the saved optimizer does not fit on some ranks: {told}", "give a file of weights alone")
    if run.is_rank_zero:
        logger.warning("the saved optimizer does not fit, so that this run's begins anew: %s", told)
    return False


def kept_apart(optimizer: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The same without ties to the file: an optimizer keeps what it is given where that is on its device already."""

    def apart(value: Any) -> Any:
        stays = isinstance(value, Tensor) and (device.type == "cpu" or not value.dim())
        return value.clone() if stays else value

    state = {
        number: {name: apart(value) for name, value in values.items()} for number, values in optimizer["state"].items()
    }
    return {**optimizer, "state": state}


def weights_for(model: nn.Module, found: Foreign, path: Path) -> dict[str, Any]:
    """The weights by the bare model's names, all that are saved of it and of its shapes.

    Raises DataError for any others.
    """
    if (problem := base_problem(model, found.base, found.model)) is not None:
        raise DataError(f"{path} does not fit the model: {problem[0]}", problem[1])
    try:
        weights: Mapping[str, Any] = fitting(model, found.model)
    except ValueError as error:
        other = inside_lightning(model, found) or read_pretrained(model, path)
        if other is None:
            raise DataError(
                f"{path} does not fit the model: {error}", "give weights of this very model, or build that one"
            ) from error
        weights = fitting(model, other)
    for misfit in misfits(model, weights):
        raise DataError(f"{path} does not fit the model: {misfit}", "build the model as it was when they were saved")
    return dict(weights)


def misfits(model: nn.Module, weights: Mapping[str, Any]) -> Iterator[str]:
    """Tensors of another shape, and of what is one tensor in the model two that differ."""
    for name, value in only_kept(model, bare_keys(model, model.state_dict())).items():
        mine, given = (list(getattr(each, "shape", ())) for each in (value, weights[name]))
        if mine != given:
            yield f"{name} is {given} there and {mine} here"
    for first, *others in {names[0]: names for names in tied_names(model).values()}.values():
        for other in others:
            one, two = weights.get(first), weights.get(other)
            if isinstance(one, Tensor) and isinstance(two, Tensor) and one is not two and not torch.equal(one, two):
                yield f"{first} and {other} are one tensor here, and differ there"


def inside_lightning(model: nn.Module, found: Foreign) -> dict[str, Any] | None:
    """What a LightningModule holds under the one attribute whose weights are this model's; None where there is none."""
    if found.source != "lightning":
        return None
    parts: dict[str, dict[str, Any]] = {}
    for name, value in found.model.items():
        attribute, _, rest = name.partition(".")
        parts.setdefault(attribute, {})[rest] = value
    fits = {}
    for attribute, values in parts.items():
        try:
            fits[attribute] = fitting(model, values)
        except ValueError:
            continue
    if len(fits) != 1:
        return None
    ((attribute, weights),) = fits.items()
    logger.info("of the LightningModule, its %s is loaded", attribute)
    return weights
