"""A simulated device memory for tests on the CPU: a model's passes take bytes by their rows, and may run out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.engine.batch_size import Peak


class SimulatedMemory:
    """Simulates a device: `held` bytes for the state, and for each row of a pass `by_row`, in evaluation a third.

    Passes that would take more than `capacity` raise torch.OutOfMemoryError.
    """

    def __init__(self, model: nn.Module, capacity: float, *, held: float = 10.0, by_row: float = 3.0) -> None:
        self.capacity = capacity
        self.held = held
        self.by_row = by_row
        self.most = held
        self.passes: list[tuple[int, bool]] = []
        """Rows of each forward pass, and whether it was of training."""
        model.register_forward_hook(self._run)

    def _run(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        rows = len(inputs[0])
        self.passes.append((rows, module.training))
        used = self.held + self.by_row * rows * (1 if module.training else 1 / 3)
        if used > self.capacity:
            raise torch.OutOfMemoryError(f"CUDA out of memory (simulated): {used} bytes of {self.capacity}")
        self.most = max(self.most, used)

    def begin(self) -> None:
        """Forget the peak."""
        self.most = self.held

    def peak(self) -> Peak:
        """Of what passes took; nine tenths may be filled."""
        return Peak(self.most, 0.9 * self.capacity)


@contextmanager
def measured_by(memory: SimulatedMemory) -> Iterator[SimulatedMemory]:
    """Inside, the preflight runs on the CPU and measures by this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drumline.engine.preflight.device_memory", lambda *given: memory)
        yield memory
