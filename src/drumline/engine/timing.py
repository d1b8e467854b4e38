"""Moments on the device's own time line, taken without making the host wait."""

from __future__ import annotations

import time
from typing import Any

import torch

Mark = Any
"""A CUDA event, or on the CPU a number of seconds."""


class DeviceClock:
    """Marks moments as the device comes to them: on a GPU by events in the current stream, on the CPU by the clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"

    def mark(self) -> Mark:
        """The moment at which all that was asked of the device so far is done."""
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def drain(self) -> None:
        """Wait until the device has done all that it was asked for."""
        if self._is_cuda:
            torch.cuda.synchronize(self._device)

    def seconds(self, first: Mark, last: Mark) -> float:
        """Time between two moments, both of them over: `drain` first."""
        return float(first.elapsed_time(last)) / 1000 if self._is_cuda else float(last - first)
