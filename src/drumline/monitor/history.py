"""The last hour of every GPU in ring buffers of fixed size, by UUID and field; of what was before, totals."""

from __future__ import annotations

import math
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields

from drumline.hardware.records import GpuSample, Pipes, Snapshot
from drumline.hardware.sample import HARMLESS
from drumline.monitor.forks import renew_after_fork
from drumline.monitor.window import Total, Window

SIZE = 3600
"""Looks kept of each GPU: an hour at one a second, in about 1 MB."""
MOST_GPUS = 256
"""GPUs and MIG instances kept; instances get new UUIDs whenever they are made, so that a service sees ever more."""
MOST_PHASES = 1000

_NO_NUMBERS = {"gpu", "time", "throttled_by", "pipes", "processes", "refused"}
_COUNTERS = ("nvlink_tx_bytes", "nvlink_rx_bytes")
FIELDS = (
    *(field.name for field in fields(GpuSample) if field.name not in _NO_NUMBERS),
    *(field.name for field in fields(Pipes) if field.name != "window_s"),
    *(f"{name}_per_s" for name in _COUNTERS),
    "throttled",
)
"""What is kept: the numbers of GpuSample and of its Pipes under their own names, rates of its traffic counters, and
whether anything slows it down but the power limit (1 or 0)."""


def numbers(sample: GpuSample) -> dict[str, float]:
    """Pure: the numbers of a sample by the names in FIELDS; a value that nobody gave is left out."""
    found: dict[str, float] = {}
    for record in (sample, sample.pipes):
        for field in () if record is None else fields(record):
            value = getattr(record, field.name)
            if field.name in FIELDS and value is not None:
                found[field.name] = float(value)
    if sample.throttled_by is not None:
        found["throttled"] = float(not HARMLESS.issuperset(sample.throttled_by))
    return found


@dataclass
class _Phase:
    name: str
    start: float
    end: float | None = None


class _Rings:
    """One GPU's values: a ring of times and, beside it, one of values for each field that was ever given."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.times = array("d", [math.nan]) * size
        self.values: dict[str, array[float]] = {}
        self.totals: dict[str, Total] = {}
        self.added = 0
        self.before: tuple[float, GpuSample] | None = None

    def add(self, now: float, sample: GpuSample) -> None:
        given = numbers(sample) | self._rates(now, sample)
        self.before = (now, sample)
        place = self.added % self.size
        self.times[place] = now
        for ring in self.values.values():
            ring[place] = math.nan
        self.added += 1
        self.amend(given)

    def amend(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name not in self.values:
                self.values[name] = array("d", [math.nan]) * self.size
                self.totals[name] = Total()
            place = (self.added - 1) % self.size
            self.values[name][place] = value
            self.totals[name].add(self.times[place], value)

    def _rates(self, now: float, sample: GpuSample) -> dict[str, float]:
        rates: dict[str, float] = {}
        if self.before is not None and now > self.before[0]:
            for name in _COUNTERS:
                earlier, later = getattr(self.before[1], name), getattr(sample, name)
                # A counter that fell was reset: what passed in between is not known.
                if earlier is not None and later is not None and later >= earlier:
                    rates[f"{name}_per_s"] = (later - earlier) / (now - self.before[0])
        return rates

    def read(self, field: str, since: float, until: float) -> tuple[list[float], list[float]]:
        """Times and values of a span, oldest first, without the looks at which nobody gave the value."""
        ring = self.values.get(field)
        if ring is None:
            return [], []
        # The oldest is at the place that comes next, once the ring is full.
        place = self.added % self.size if self.added > self.size else 0
        count = min(self.added, self.size)
        times = (self.times[place:] + self.times[:place])[:count]
        first, last = bisect_left(times, since), bisect_right(times, until)
        values = (ring[place:] + ring[:place])[first:last]
        told = [each for each in zip(times[first:last], values, strict=True) if not math.isnan(each[1])]
        return [when for when, _ in told], [value for _, value in told]


class History:
    """What the GPUs did lately, on the clock of whoever adds to it; safe to read from any thread.

    size: looks kept of each GPU. clock: in seconds, the sampler's; phases and `last_s` are told on it.
    """

    def __init__(self, size: int = SIZE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._rings: dict[str, _Rings] = {}
        self._phases: deque[_Phase] = deque(maxlen=MOST_PHASES)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make the lock anew, in a forked child."""
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot, now: float | None = None) -> None:
        """Keep the numbers of every GPU in it, as of `now` (None: this moment of the clock)."""
        now = self._clock() if now is None else now
        with self._lock:
            for sample in snapshot.gpus:
                rings = self._rings.pop(sample.gpu.uuid, None) or _Rings(self._size)
                rings.add(now, sample)
                self._rings[sample.gpu.uuid] = rings  # at the end: the one not seen for longest is the first
            while len(self._rings) > MOST_GPUS:
                del self._rings[next(iter(self._rings))]

    def amend(self, uuid: str, values: Mapping[str, float]) -> None:
        """Add values of further fields to the newest look at a GPU; without effect on one that was never seen."""
        with self._lock:
            if uuid in self._rings:
                self._rings[uuid].amend(values)

    def series(
        self, uuid: str, field: str, *, last_s: float | None = None, since: float = -math.inf, until: float = math.inf
    ) -> tuple[list[float], list[float]]:
        """Times (s, on the clock) and values of one field of FIELDS, oldest first; looks without a value are left out.

        last_s: only the newest so many seconds.
        """
        if last_s is not None:
            since = max(since, self._clock() - last_s)
        with self._lock:
            rings = self._rings.get(uuid)
            return ([], []) if rings is None else rings.read(field, since, until)

    def window(
        self,
        uuid: str,
        field: str,
        *,
        last_s: float | None = None,
        phase: str | None = None,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> Window | None:
        """Statistics of one field: of the newest seconds, of a span, or of the last phase of that name.

        Without any of these it is of all looks there ever were; percentiles are of those that are kept. None where
        there is no value: no such GPU, field or phase, or nobody said anything meanwhile.
        """
        whole = last_s is None and phase is None and math.isinf(since) and math.isinf(until)
        if phase is not None:
            span = self.span(phase)
            if span is None:
                return None
            since, until = max(since, span[0]), min(until, span[1])
        times, values = self.series(uuid, field, last_s=last_s, since=since, until=until)
        window = Window.of(times, values, None if math.isinf(until) else until)
        with self._lock:
            rings = self._rings.get(uuid) if whole else None
            return window if window is None or rings is None else rings.totals[field].over(window)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Gives a span of time a name: `with history.phase("evaluation"): ...`, then `window(..., phase=...)`."""
        phase = _Phase(name, self._clock())
        with self._lock:
            self._phases.append(phase)
        try:
            yield
        finally:
            phase.end = self._clock()

    def span(self, phase: str) -> tuple[float, float] | None:
        """Start and end (or now) of the newest phase of that name on the clock; None where there was none."""
        with self._lock:
            found = next((known for known in reversed(self._phases) if known.name == phase), None)
        if found is None:
            return None
        return found.start, self._clock() if found.end is None else found.end
