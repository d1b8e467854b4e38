"""Which settings of how the model is computed contradict each other, the kind of parallelism or the machine."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.plan.devices import Devices


def compute_problems(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    """List them."""
    return iter(())
