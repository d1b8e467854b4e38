"""The machine's GPUs for many who ask at once: one look at a time, on a thread that nobody has to wait for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from drumline.hardware.health import Verdict, read_verdicts
from drumline.hardware.records import GpuSample, Snapshot
from drumline.monitor.activity import Activity, explain
from drumline.monitor.source import MachineSource

logger = logging.getLogger("drumline")

FRESH_S = 0.5
"""How old a look may be to be given again: many pages that ask every second are one question to the driver."""
VERDICTS_EVERY_S = 15.0
"""Counters of errors are read more seldom than use and heat."""


@dataclass(frozen=True)
class MachineLook:
    """What is known of the machine's GPUs now."""

    snapshot: Snapshot
    before: Snapshot | None = None
    """The look before, for what takes two."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By UUID."""
    late: str | None = None
    """Why there is nothing newer; None: this is of now."""

    def find(self, name: str) -> GpuSample | None:
        """One GPU by nvidia-smi's index, its UUID or the beginning of that; None where none fits, or several do."""
        text = name.strip().lower()
        if text.isdecimal():
            fits = [each for each in self.snapshot.gpus if each.gpu.parent is None and str(each.gpu.index) == text]
        else:
            fits = [each for each in self.snapshot.gpus if len(text) > 4 and each.gpu.uuid.lower().startswith(text)]
        return fits[0] if len(fits) == 1 else None

    def activity(self, sample: GpuSample) -> Activity:
        """What a GPU of this look does."""
        earlier = () if self.before is None else self.before.gpus
        return explain(sample, next((each for each in earlier if each.gpu.uuid == sample.gpu.uuid), None))

    def health(self, sample: GpuSample) -> Verdict | None:
        """Its verdict; None where the driver gave none."""
        return self.verdicts.get(sample.gpu.uuid) or self.verdicts.get(sample.gpu.parent or "")

    def indexes(self) -> dict[int, str]:
        """UUIDs of whole GPUs by nvidia-smi's index."""
        return {each.gpu.index: each.gpu.uuid for each in self.snapshot.gpus if each.gpu.parent is None}


class Machine:
    """Looks at the GPUs when asked; a driver that hangs delays an answer by `limit_s` once, and not those after it."""

    def __init__(
        self,
        limit_s: float,
        *,
        source: Callable[[], Snapshot] | None = None,
        verdicts: Callable[[], Mapping[str, Verdict]] = read_verdicts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Source and verdicts stand in for this machine in tests, as does the clock that ages are told by (s)."""
        self._limit_s, self._clock = limit_s, clock
        self._source = MachineSource() if source is None else source
        self._read_verdicts = verdicts
        self._verdicts: Mapping[str, Verdict] = {}
        self._verdicts_due = float("-inf")
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._done.set()
        self._began = self._taken = float("-inf")
        self._latest: MachineLook | None = None
        self._closed = False

    def look(self) -> MachineLook:
        """The GPUs now; what was seen last, with why, where the driver is late."""
        with self._lock:
            now = self._clock()
            if self._latest is not None and (self._closed or now - self._taken <= FRESH_S):
                return self._latest
            if self._done.is_set() and not self._closed:
                self._done = threading.Event()
                self._began = now
                threading.Thread(target=self._read, args=(self._done,), name="drumline-look", daemon=True).start()
            done, left = self._done, self._limit_s - (now - self._began)
        if done.wait(max(0.0, left)) and self._latest is not None:
            return self._latest
        waited = self._clock() - self._began
        return self._late(f"the driver has not answered for {waited:.0f} s" if not done.is_set() else "not read yet")

    def close(self) -> None:
        """Give back the session with the driver, unless somebody still waits in it."""
        with self._lock:
            self._closed = True
        if self._done.wait(1.0):
            getattr(self._source, "close", lambda: None)()

    def _late(self, why: str) -> MachineLook:
        known = self._latest
        if known is None:
            return MachineLook(Snapshot(time.time(), why), late=why)
        return MachineLook(known.snapshot, known.before, known.verdicts, why)

    def _read(self, done: threading.Event) -> None:
        try:
            before = None if self._latest is None else self._latest.snapshot
            snapshot = self._source()
            if snapshot.gpus and self._clock() >= self._verdicts_due:
                self._verdicts = self._read_verdicts()
                self._verdicts_due = self._clock() + VERDICTS_EVERY_S
            self._latest = MachineLook(snapshot, before, self._verdicts)
        except Exception as error:
            logger.warning("the GPUs could not be read", exc_info=error)
            self._latest = self._late(f"reading failed: {type(error).__name__}: {error}")
        finally:
            self._taken = self._clock()
            done.set()
