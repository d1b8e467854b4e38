"""Passes that are only tried out: how long they take, and what memory, on this process's devices alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from drumline.parallel.compile import Sizes
from drumline.parallel.due import due_bytes
from drumline.parallel.strategy import MicroBatch, Scale, Sums

if TYPE_CHECKING:
    from drumline.parallel.replicas import Replica
    from drumline.parallel.single import Part


class Trials:
    """What a strategy of one device tries out."""

    device: torch.device
    _parts: Mapping[str, Part]
    _sizes: Sizes
    window: Callable[[str, Sequence[MicroBatch], Scale], Sums]
    discard: Callable[[str], None]

    @property
    def due_bytes(self) -> int:
        """Of all learners' optimizers."""
        return sum(due_bytes(part.update.optimizer, self.device) for part in self._parts.values())

    def trial(self, micro_batches: Sequence[MicroBatch], times: int = 1) -> float:
        """Seconds that windows of every learner take, one after the other, each dropped at its end."""
        self._wait()
        began = time.perf_counter()
        sizes, self._sizes = self._sizes, Sizes()  # what is tried is no batch of the run
        try:
            for name, part in [*self._parts.items()] * times:
                windows = part.windows
                try:
                    self._try_window(name, micro_batches)
                finally:
                    self._drop_trial(name)
                    part.windows = windows
        finally:
            self._sizes = sizes
        self._wait()
        return time.perf_counter() - began

    def _try_window(self, name: str, micro_batches: Sequence[MicroBatch]) -> None:
        """The passes of a trial: here a whole window."""
        self.window(name, micro_batches, Scale(0.0, 0.0))

    def _drop_trial(self, name: str) -> None:
        """Drop what a trial left, whole or not."""
        self.discard(name)

    def _wait(self) -> None:
        """Let the host wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class TrialsInTurn:
    """What a strategy of several replicas tries out, on each by itself: it has memory of its own."""

    _first: Replica
    _refresh: Callable[[], None]
    _each: Callable[..., list[Any]]

    @property
    def due_bytes(self) -> int:
        """On each device alike."""
        return self._first.due_bytes

    def trial(self, micro_batches: Sequence[MicroBatch], times: int = 1) -> float:
        """The longest that any replica takes for those of its shard."""
        self._refresh()

        def try_out(replica: Replica) -> float:
            with replica.here():
                return replica.trial([each for each in micro_batches if each.shard == replica.index], times)

        seconds: list[float] = self._each(try_out, in_turn=True)
        return max(seconds)
