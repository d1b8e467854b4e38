"""Everything that is watched on a machine, each at its own pace: GPUs, their health, runs, alerts; for the commands."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from drumline.config.monitor import MonitorConfig
from drumline.hardware.health import Verdict, read_verdicts, verdict_of
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.xids import Xid
from drumline.monitor.activity import activity
from drumline.monitor.alerts import Alert
from drumline.monitor.background import Background
from drumline.monitor.energy import cost
from drumline.monitor.gpu_detail import SPAN_S
from drumline.monitor.health_watch import Health, HealthWatch
from drumline.monitor.machine_alerts import MachineAlerts, RunHere, with_room
from drumline.monitor.runs import RunFacts, RunsOnThisMachine
from drumline.monitor.sampler import Sampler
from drumline.monitor.scene import RATES_S, Scene

HEALTH_EVERY_S, RUNS_EVERY_S, ALERTS_EVERY_S = 15.0, 2.0, 1.0
PAST_EVERY_S = 300.0
"""How often the kernel's log is read for what came before the watch: after a reset it is held against nobody."""


@dataclass(frozen=True)
class Sources:
    """What is looked at; `health` is made on the thread that calls it."""

    snapshot: Callable[[], Snapshot] | None = None
    """None: this machine."""
    health: Callable[[], Callable[[], Health]] = HealthWatch
    runs: Callable[[], Sequence[RunFacts]] = tuple
    past: Callable[[], Mapping[str, Verdict]] = dict
    """Gives verdicts that heed XIDs from before the watch."""


class MachineWatch:
    """Watches as a context; `scene` is what there is to show now, and waits for nobody."""

    def __init__(self, config: MonitorConfig, sources: Sources) -> None:
        """Raises ConfigError for alerts that cannot be meant."""
        self._config = config
        self._hostname = socket.gethostname()
        self._machine_alerts = MachineAlerts(config)
        self.sampler = Sampler(config.every_s, source=sources.snapshot, on_sample=self._machine_alerts.add)
        self._reader = _HealthOfGpus(self.sampler, sources)
        self._health = Background(self._reader, HEALTH_EVERY_S, Health(late=True))
        self._runs: Background[list[RunHere]] = Background(
            lambda: [with_room(run) for run in sources.runs()], RUNS_EVERY_S, []
        )
        self._alerts: Background[list[Alert]] = Background(
            lambda: self._machine_alerts.step(self.sampler, self._health.value, self._runs.value), ALERTS_EVERY_S, []
        )
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.callback(self._machine_alerts.close)
        for part in (self.sampler, self._health, self._runs, self._alerts):
            self._held.enter_context(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def wait(self, *, rates: bool = False, limit_s: float = 5.0) -> None:
        """Wait until there is something to show: the GPUs, their health, and the runs.

        rates: of the GPUs also what takes two looks.
        """
        limit = time.monotonic() + limit_s
        first = self.sampler.look_within(limit_s)
        if rates and first is not None and first.gpus:
            time.sleep(RATES_S)
            self.sampler.look_within(max(0.0, limit - time.monotonic()))
        for part in (self._health, self._runs):
            part.wait(max(0.0, limit - time.monotonic()))

    def scene(self) -> Scene:
        """What is known now."""
        snapshot = self.sampler.latest or Snapshot(time.time(), self.sampler.stuck or "not read yet")
        history, now = self.sampler.history, time.monotonic()

        def series(uuid: str, name: str) -> list[tuple[float, float]]:
            times, values = history.series(uuid, name, last_s=SPAN_S)
            return [(now - when, value) for when, value in zip(times, values, strict=True)]

        return Scene(
            snapshot,
            time.time(),
            self._hostname,
            verdicts=self._health.value.verdicts,
            runs=[run.facts for run in self._runs.value],
            alerts=self._alerts.value,
            series=series,
            activity=self._activity,
            stuck=self.sampler.stuck,
            price_per_hour=self._price(snapshot),
        )

    def runs(self) -> Sequence[RunFacts]:
        """The runs of this machine. Raises TimeoutError where they could not be read lately."""
        return [run.facts for run in self._runs.fresh()]

    def health(self) -> Health:
        """The GPUs' health. Raises TimeoutError where it could not be read lately."""
        health = self._health.fresh()
        if health.late:
            raise TimeoutError("the driver does not answer")
        return health

    def xid_counts(self) -> dict[tuple[str | None, int], int]:
        """By UUID and code, how many XIDs came since the watch began; they come though the driver answers nothing.

        Raises TimeoutError where nobody has looked lately.
        """
        self._health.fresh()
        return dict(self._reader.counts)

    def _activity(self, sample: GpuSample) -> str:
        before = self.sampler.previous
        same = [each for each in (before.gpus if before is not None else ()) if each.gpu.uuid == sample.gpu.uuid]
        return activity(sample, same[0] if same else None)

    def _price(self, snapshot: Snapshot) -> float | None:
        """Of an hour as it is now; MIG instances are parts of their GPU."""
        whole = [sample for sample in snapshot.gpus if sample.gpu.parent is None]
        joules = 3600.0 * sum(sample.power_w or 0.0 for sample in whole)
        return cost(joules, len(whole), self._config) or None


def this_machine(folders: Sequence[Path]) -> Sources:
    """The GPUs of this machine, and the runs in these folders and wherever else they are recorded."""
    return Sources(runs=RunsOnThisMachine(folders), past=read_verdicts)


def with_past(verdict: Verdict, past: Verdict | None) -> Verdict:
    """Pure: a verdict with what is still held against the GPU for XIDs that came before the watch."""
    known = {finding.code for finding in verdict.findings}
    old = [finding for finding in (past.findings if past is not None else ()) if finding.code.startswith("xid_")]
    return verdict_of(verdict.uuid, [*verdict.findings, *(finding for finding in old if finding.code not in known)])


class _HealthOfGpus:
    """Reads health and counts XIDs; nobody is asked on a machine without GPU, whose kernel log would tell nothing."""

    def __init__(self, sampler: Sampler, sources: Sources) -> None:
        self.counts: Counter[tuple[str | None, int]] = Counter()
        self._counted: frozenset[Xid] = frozenset()
        self._sampler = sampler
        self._sources = sources
        self._read: Callable[[], Health] | None = None
        self._past: Mapping[str, Verdict] = {}
        self._past_due = 0.0

    def __call__(self) -> Health:
        latest = self._sampler.latest or self._sampler.look_within()
        if latest is not None and latest.no_gpu:
            return Health()
        self._read = self._read or self._sources.health()
        health = self._read()
        self.counts.update((xid.uuid, xid.code) for xid in health.xids if xid not in self._counted)
        self._counted = frozenset(health.xids)
        if time.monotonic() >= self._past_due:
            self._past = self._sources.past()
            self._past_due = time.monotonic() + PAST_EVERY_S
        found = {uuid: with_past(verdict, self._past.get(uuid)) for uuid, verdict in health.verdicts.items()}
        return replace(health, verdicts=found)

    def close(self) -> None:
        """Give back what the reader holds."""
        getattr(self._read, "close", lambda: None)()
