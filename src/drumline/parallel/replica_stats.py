"""What the replicas of one process did: times without waiting for a device, memory, rows and errors."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

import torch

PENDING = 64
"""Timed passes whose end is not known yet, at most; older ones are not counted."""


class ReplicaStats(NamedTuple):
    """What one replica did so far."""

    replica: int
    device: str
    rows: int
    """Of the newest batch; 0 where it had none."""
    forwards: int
    forward_s: float | None
    """Mean time of a forward pass on the device, in seconds; None before the first."""
    memory_bytes: int | None
    """Allocated on its GPU now, by this process; None on the CPU, as the next one."""
    peak_memory_bytes: int | None
    errors: int
    last_error: str | None


class Record:
    """Counts and times of one replica."""

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number
        self.device = device
        self.rows = 0
        self._forwards = 0
        self._timed = 0
        self._total_s = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=PENDING)
        self._errors = 0
        self._last_error: str | None = None
        self._lock = threading.Lock()
        """A monitor may ask while a pass runs."""

    def begin(self) -> float | torch.cuda.Event:
        """Start the clock: an event on the device's stream, which nobody waits for."""
        if self.device.type != "cuda":
            return time.perf_counter()
        self._settle(wait=False)
        began = torch.cuda.Event(enable_timing=True)
        began.record()
        return began

    def end(self, began: float | torch.cuda.Event) -> None:
        """Take the time since then."""
        self._forwards += 1
        if isinstance(began, float):
            self._timed += 1
            self._total_s += time.perf_counter() - began
            return
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        self._pending.append((began, ended))

    def failed(self, error: Exception) -> None:
        """Count an error; its text is kept, and not its frames with their tensors."""
        self._errors += 1
        self._last_error = f"{type(error).__name__}: {error}"

    def _settle(self, *, wait: bool) -> None:
        """Add up the passes that are over."""
        with self._lock:
            while self._pending and (wait or self._pending[0][1].query()):
                began, ended = self._pending.popleft()
                ended.synchronize()
                self._timed += 1
                self._total_s += began.elapsed_time(ended) / 1000

    def stats(self) -> ReplicaStats:
        """As it is now."""
        self._settle(wait=True)
        on_gpu = self.device.type == "cuda"
        return ReplicaStats(
            replica=self.number,
            device=str(self.device),
            rows=self.rows,
            forwards=self._forwards,
            forward_s=self._total_s / self._timed if self._timed else None,
            memory_bytes=torch.cuda.memory_allocated(self.device) if on_gpu else None,
            peak_memory_bytes=torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            errors=self._errors,
            last_error=self._last_error,
        )
