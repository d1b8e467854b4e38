"""Steps of a run that is under way, made and timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import torch


def advance(steps: Iterator[object], count: int) -> None:
    """Make so many."""
    for _ in islice(steps, count):
        pass


def timed(steps: Iterator[object], count: int) -> float:
    """Seconds a step, over so many of them, the GPU waited for at both ends."""
    synchronise()
    began = time.perf_counter()
    advance(steps, count)
    synchronise()
    return (time.perf_counter() - began) / count


def synchronise() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
