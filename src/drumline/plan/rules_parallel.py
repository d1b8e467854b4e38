"""Which settings of `parallel` contradict the rest of a run or its machine."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.plan.devices import Devices


def parallel_problems(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    """List them."""
    return iter(())
