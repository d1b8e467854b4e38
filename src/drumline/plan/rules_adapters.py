"""Which settings of adapters, quantised weights and small optimizer state contradict each other or the machine."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.model import HuggingFaceModel
from drumline.config.parallel import FsdpParallel
from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.plan.devices import Devices


def adapter_problems(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    """List them."""
    if isinstance(config.model, HuggingFaceModel):
        yield from _quantised(config.model)
    yield from _pages(config, devices)


def _problem(key: str, what: str, fix: str) -> Problem:
    return Problem(None, tuple(key.split(".")), what, fix)


def _quantised(model: HuggingFaceModel) -> Iterator[Problem]:
    if model.quantise != "none" and model.adapter is None:
        what = f"{model.quantise}, and quantised weights cannot be trained themselves"
        yield _problem("model.quantise", what, "add model.adapter: {}, or leave model.quantise out")


def _pages(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    optimizer = config.train.optimizer
    if not optimizer.paged:
        return
    key = "train.optimizer.paged"
    if optimizer.state_precision != "int8":
        what = f"moves moments in 8 bits, and train.optimizer.state_precision is {optimizer.state_precision}"
        yield _problem(key, what, "set train.optimizer.state_precision to int8, or leave it out")
    if devices.device == "cpu":
        what = f"moves moments between a GPU and the host, and the run is on the CPU: {devices.reasons['device']}"
        yield _problem(key, what, "leave it out")
    elif isinstance(config.parallel, FsdpParallel) and config.parallel.offload:
        what = "moves moments to the host where a GPU is short, and parallel.offload keeps all of them there"
        yield _problem(key, what, "leave one of the two out")
