"""Alerts about all GPUs and runs of a machine, for who watches it without Prometheus."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from drumline.config.monitor import MonitorConfig
from drumline.hardware.health import Finding
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.xids import Xid
from drumline.monitor import alerts
from drumline.monitor.alert_facts import gpu_facts, health_facts, run_facts
from drumline.monitor.alert_rules import MINUTE_S, rules_of
from drumline.monitor.health_watch import Health
from drumline.monitor.runs import RunFacts, room_of
from drumline.monitor.sampler import Sampler
from drumline.monitor.sinks import Sinks
from drumline.rundir import RunDir

_AT_THE_END = ("failed", "energy_j")


@dataclass(frozen=True)
class RunHere:
    """A run, and the room that it has for checkpoints."""

    facts: RunFacts
    free_bytes: int | None = None
    checkpoint_bytes: int = 0


def with_room(run: RunFacts) -> RunHere:
    """Look at the disk and the newest checkpoint of a run; nothing where they cannot be read."""
    try:
        return RunHere(run, *room_of(RunDir(run.path)))
    except OSError:
        return RunHere(run)


class MachineAlerts:
    """Takes in samples as they come, and looks at all rules when `step` is called; close() it at the end."""

    def __init__(self, config: MonitorConfig) -> None:
        """Raises ConfigError for rules and sinks that cannot be meant."""
        self._states = alerts.begin(rules_of(config))
        self._sinks = Sinks(config.alerts)
        self._hostname = socket.gethostname()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._recent: dict[str, deque[GpuSample]] = {}

    def close(self) -> None:
        """Deliver what can be delivered within some seconds."""
        self._sinks.close()

    def add(self, snapshot: Snapshot) -> None:
        """Keep the samples of the last minute."""
        oldest = snapshot.time - MINUTE_S
        with self._lock:
            for sample in snapshot.gpus:
                recent = self._recent.setdefault(sample.gpu.uuid, deque())
                recent.append(sample)
                while recent[0].time < oldest and len(recent) > 1:
                    recent.popleft()
            # MIG instances come and go under ever new UUIDs.
            self._recent = {uuid: recent for uuid, recent in self._recent.items() if recent[-1].time >= oldest}

    def step(self, sampler: Sampler, health: Health, runs: Sequence[RunHere]) -> list[alerts.Alert]:
        """Look at all rules, tell the sinks of what has changed; returns what is pending or fires, since 1970."""
        now = time.monotonic()
        to_wall = time.time() - now
        self._states, told = alerts.step(self._states, self._facts(sampler, health, runs, now), now)
        for alert in told:
            if alert.state != "pending":
                note = {**alert.to_json(), "since": round(alert.since + to_wall, 3), "node": self._hostname}
                self._sinks.send({"time": round(time.time(), 3), **note})
        return [replace(alert, since=alert.since + to_wall) for alert in self._states.current()]

    def _facts(
        self, sampler: Sampler, health: Health, runs: Sequence[RunHere], now: float
    ) -> Mapping[str, Mapping[str, float]]:
        latest = sampler.latest
        with self._lock:
            recent = {uuid: list(samples) for uuid, samples in self._recent.items()}
        busy = {uuid for run in runs if run.facts.state == "running" and run.facts.step for uuid in run.facts.gpus}
        facts: dict[str, Mapping[str, float]] = {}
        samples = latest.gpus if latest is not None else ()
        # What is wrong with a GPU is told of it alone, and not once more of each of its instances.
        whole = {sample.gpu.uuid for sample in samples}
        parts = {sample.gpu.uuid for sample in samples if sample.gpu.parent in whole}
        for sample in samples if sampler.stuck is None else ():
            uuid = sample.gpu.uuid
            findings, xids = ((), []) if uuid in parts else _news(health, uuid, sample.gpu.parent)
            facts[uuid] = gpu_facts(recent.get(uuid, [sample]), findings, xids, has_work=uuid in busy)
        reported = {xid.uuid for xid in health.xids if xid.uuid is not None}
        for uuid in sorted({*health.verdicts, *reported} - facts.keys() - parts):
            facts[uuid] = health_facts(*_news(health, uuid))
        for run in runs:
            if run.facts.here:
                facts[str(run.facts.path)] = _run_facts(run)
        if latest is None or not latest.no_gpu:
            age = sampler.age_s()
            facts[self._hostname] = {"driver_age_s": now - self._began if age is None else age}
        return facts


def _news(health: Health, uuid: str, parent: str | None = None) -> tuple[Sequence[Finding] | None, list[Xid]]:
    """Findings, None where they are not known, and XIDs of a GPU."""
    verdict = health.verdicts.get(uuid)
    findings = verdict.findings if verdict is not None else None if health.late else ()
    return findings, health.xids_of(uuid, parent)


def _run_facts(run: RunHere) -> dict[str, float]:
    """Of a run that is over, only how it ended: nothing else can be mended any more."""
    found = run_facts(run.facts, run.free_bytes, run.checkpoint_bytes)
    return found if run.facts.state in ("starting", "running") else {name: found[name] for name in _AT_THE_END}
