"""The machine as the sampler's source: one session with the driver for many looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from drumline.hardware.records import Snapshot
from drumline.hardware.sample import COUNTERS_EVERY_S, take
from drumline.hardware.session import Session
from drumline.hardware.sources import ask_others

OTHERS_EVERY_S = 60.0
"""How often nvidia-smi or torch is asked where NVML tells nothing: each time starts a process, torch's for seconds."""
OTHERS_LIMIT_S = 5.0
"""How long nvidia-smi may take."""


class MachineSource:
    """Calling it takes a Snapshot; the session is opened at the first call and closed by close().

    Where NVML tells of no GPU, others are asked now and then (hardware.sources), and what they told is given again in
    between, with its own time. counters_every_s: see `take`; 0 where each look's must be the counters' own. nvml
    stands in for pynvml in tests, others for the others.
    """

    def __init__(
        self,
        nvml: Any = None,
        *,
        counters_every_s: float = COUNTERS_EVERY_S,
        others: Callable[[Snapshot, float], Snapshot] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._counters_every_s = counters_every_s
        self._others = ask_others if others is None and nvml is None else others
        self._clock = clock
        self._session: Session | None = None
        self._told: Snapshot | None = None
        self._told_at = 0.0

    def __call__(self) -> Snapshot:
        """All GPUs of the machine now; waits as long as the driver takes."""
        if self._session is None:
            self._session = Session(self._nvml)
        snapshot = take(self._session, counters_every_s=self._counters_every_s)
        if snapshot.gpus or snapshot.problems or self._others is None:
            self._told = None
            return snapshot
        now = self._clock()
        if self._told is None or now - self._told_at >= OTHERS_EVERY_S:
            self._told, self._told_at = self._others(snapshot, OTHERS_LIMIT_S), now
        return self._told

    def close(self) -> None:
        """Close the session; a later call opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
