"""Outcomes of updates, read by the host without waiting: at once on CPU, a window later on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drumline.parallel.strategy import Outcome


class Numbers(NamedTuple):
    """An outcome's values on the host."""

    norm: float
    applied: bool
    lr: float


class Known(NamedTuple):
    """What became of one window's updates."""

    step: int
    learners: list[Numbers]
    """By learner, in their order."""


class Pending:
    """A queue of outcomes on their way from the device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._queue: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def __len__(self) -> int:
        """How many are not known yet."""
        return len(self._queue)

    def push(self, step: int, outcomes: Sequence[Outcome]) -> None:
        """Start the copy of one window's outcomes, one a learner, to page-locked memory."""
        packed = torch.stack([value.double() for outcome in outcomes for value in on_device(outcome)])
        if not self._cuda:
            self._queue.append((step, packed, None))
            return
        host = torch.empty(len(packed), dtype=torch.float64, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._queue.append((step, host, event))

    def take(self, keep: int) -> list[Known]:
        """All but the newest `keep` outcomes, waiting for them where the device is not there yet."""
        known = []
        while len(self._queue) > keep:
            step, values, event = self._queue.popleft()
            if event is not None:
                event.synchronize()
            flat = values.tolist()
            learners = [Numbers(flat[i], bool(flat[i + 1]), flat[i + 2]) for i in range(0, len(flat), 3)]
            known.append(Known(step, learners))
        return known


def on_device(outcome: Outcome) -> tuple[Tensor, Tensor, Tensor]:
    """Norm, applied and rate as tensors on the device."""
    lr = outcome.lr
    if not isinstance(lr, Tensor):
        lr = torch.full_like(outcome.norm, lr, dtype=torch.float64)
    return outcome.norm, outcome.applied, lr
