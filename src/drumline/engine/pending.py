"""Outcomes of updates, read by the host without waiting: at once on CPU, a window later on a GPU."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from drumline.parallel.strategy import Outcome


class Known(NamedTuple):
    """An outcome on the host."""

    step: int
    norm: float
    applied: bool
    lr: float


class Pending:
    """A queue of outcomes on their way from the device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._queue: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def __len__(self) -> int:
        """How many are not known yet."""
        return len(self._queue)

    def push(self, step: int, outcome: Outcome) -> None:
        """Start the copy of one outcome to page-locked memory."""
        lr = outcome.lr
        if not isinstance(lr, Tensor):
            lr = torch.full_like(outcome.norm, lr, dtype=torch.float64)
        packed = torch.stack([x.double() for x in (outcome.norm, outcome.applied, lr)])
        if not self._cuda:
            self._queue.append((step, packed, None))
            return
        host = torch.empty(3, dtype=torch.float64, pin_memory=True)
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
            norm, applied, lr = values.tolist()
            known.append(Known(step, norm, bool(applied), lr))
        return known
