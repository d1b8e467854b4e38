"""What one machine of a run leaves in the run directory: its GPUs' records, XIDs, sick GPUs, and alerts."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drumline.config.monitor import MonitorConfig
from drumline.hardware.records import GpuSample, Snapshot
from drumline.launcher.recording import GPU_SICK, TRAINING, RecordingJob
from drumline.monitor import alerts
from drumline.monitor.alert_facts import gpu_facts, health_facts, run_facts
from drumline.monitor.alert_rules import MINUTE_S, rules_of
from drumline.monitor.energy import EnergyMeter
from drumline.monitor.health_news import HealthNews
from drumline.monitor.health_watch import Health
from drumline.monitor.runs import RunFacts, RunWatch, holder_of, room_of
from drumline.monitor.sampler import Sampler
from drumline.monitor.sinks import Sinks
from drumline.monitor.slow_source import SlowSource
from drumline.monitor.spending import read_spending, spending_file, write_spending
from drumline.rundir import RESTART_REQUEST, LineWriter, RunDir, keep_lines, write_json

logger = logging.getLogger("drumline")

HEALTH_EVERY_S = 15.0
RUN_EVERY_S = 5.0
"""Between two looks at the run's own files, which may lie on a slow file system."""
VERDICT_S, VERDICT_LOOK_S = 8, 0.1
"""How long a launcher may take to say what becomes of a run whose worker has ended, and between two looks for it."""
PHASE_S = 5.0
"""How long a phase must last to have records of its own; a shorter one is in the record of those around it."""
SINKS_S = 2.0
"""What of the recorder's own end the last alerts may take."""
LAST_LOOK_S = 1.0
"""How long a run's last record waits for the driver."""
WAIT_S = 0.5
"""How long a look at the health may hold up everything else; a slow one is used when it is there."""

RECORDED = (
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "temperature_c",
    "memory_temperature_c",
    "power_w",
    "sm_clock_mhz",
    "sm_active",
    "tensor_active",
    "dram_active",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
)
"""Fields of a record, of those that the card gives."""


@dataclass(frozen=True)
class Sources:
    """What is looked at; None: this machine."""

    snapshot: Callable[[], Snapshot] | None = None
    health: Callable[[], Health] | None = None
    clock: Callable[[], float] = time.monotonic


class Recording:
    """Call `tick` often, and `close` at the end; sampling goes on meanwhile, on a thread of its own."""

    def __init__(self, job: RecordingJob, sources: Sources) -> None:
        """Raises ConfigError for alerts that cannot be meant."""
        self._job, self._clock = job, sources.clock
        self._run = RunDir(job.run_dir)
        self._config = MonitorConfig.model_validate(job.monitor)
        self._zero = sources.clock() - job.elapsed_s - max(0.0, time.time() - job.written)
        self._states = alerts.begin(rules_of(self._config))
        self._sinks = Sinks(self._config.alerts)
        main = job.machine == 0
        self._lines = LineWriter(self._run.metrics if main else _own_lines(self._run, job))
        self._events = LineWriter(self._run.events if main else self._run.logs / f"events_{job.node}.jsonl")
        self._watch = RunWatch(job.run_dir) if main else None
        self._spent_at = sources.clock()
        self._spent = read_spending(spending_file(self._run, job.node))
        self._joules = 0.0
        self._lock = threading.Lock()
        self._recent: dict[str, deque[GpuSample]] = {}
        self._meter = EnergyMeter()
        self.sampler = Sampler(self._config.every_s, source=sources.snapshot, clock=sources.clock, on_sample=self._take)
        self._health_source = None if sources.health is None else SlowSource(sources.health, WAIT_S, sources.clock)
        self._health = Health(late=True)
        self._news = HealthNews(job.gpus)
        self._facts: RunFacts | None = None
        self._over = False
        self._room: tuple[int | None, int] = (None, 0)
        self._due = {self._look_at_health: 0.0, self._look_at_run: 0.0, self._record: self._config.record_every_s}
        self._began = self._phase_since = sources.clock()
        self._phase = TRAINING
        self._phases: dict[str, float] = {}

    def start(self) -> None:
        """Begin to look at the GPUs; a run without GPUs has its alerts only."""
        if self._job.gpus:
            self.sampler.start()

    def enter(self, phase: str) -> None:
        """The run goes over to another phase; one of PHASE_S or longer ends with a record of its own."""
        lasted = self._clock() - self._phase_since
        self._end_phase(phase)
        if lasted >= PHASE_S:
            self._record()
            self._due[self._record] = self._clock() - self._began + self._config.record_every_s

    def tick(self) -> None:
        """Whatever is due now."""
        every = {self._look_at_health: HEALTH_EVERY_S, self._look_at_run: RUN_EVERY_S}
        now = self._clock() - self._began
        for action, due in self._due.items():
            if now >= due:
                action()
                self._due[action] = now + every.get(action, self._config.record_every_s)
        self._alert()

    def await_verdict(self) -> None:
        """After the worker's end: wait until its launcher, if it lives, has said how the run ended.

        One that starts the workers again takes back a failed worker's exit.json, and then the run has not failed. What
        the GPUs have is told first, so that the launcher can leave a sick one out.
        """
        limit = time.monotonic() + VERDICT_S
        self._look_at_run()
        state = self._open_state()
        if state is not None:
            self._look_at_health(asks=False)
        while state is not None and self._open_state() == state and time.monotonic() < limit:
            time.sleep(VERDICT_LOOK_S)
            self._look_at_run()

    def _open_state(self) -> str | None:
        """The state of a run of which its launcher, which lives, may still say something else; None: it is final."""
        if self._facts is None or self._facts.state not in ("starting", "failed"):
            return None
        return self._facts.state if holder_of(self._run.logs / "launch.lock") == "alive" else None

    def close(self) -> None:
        """The last record and the last alerts, and give everything back."""
        self._look_at_run()
        if self._facts is None or self._facts.state not in ("done", "interrupted"):
            self._look_at_health(asks=False)  # it may well be why
        self._alert()
        self._look_once_more()
        self._record()
        self.sampler.stop()
        self._sinks.close(SINKS_S)
        self._lines.close()
        self._events.close()

    def _take(self, snapshot: Snapshot) -> None:
        """Keep a look of the sampler's thread."""
        own = tuple(sample for sample in snapshot.gpus if sample.gpu.uuid in self._job.gpus)
        with self._lock:
            self._meter.add(replace(snapshot, gpus=own))
            for sample in own:
                recent = self._recent.setdefault(sample.gpu.uuid, deque())
                recent.append(sample)
                while recent[0].time < sample.time - MINUTE_S:
                    recent.popleft()

    def _look_at_health(self, *, asks: bool = True) -> None:
        """asks: whether a restart may be asked for; at its end that would be one of the next attempt."""
        if self._health_source is None or not self._job.gpus:
            return
        self._health = self._health_source.get() or Health(late=True)
        with self._lock:
            parents = {recent[-1].gpu.parent for recent in self._recent.values()}
        for event in self._news.of(self._health, {uuid for uuid in parents if uuid is not None}):
            self._tell(event)
            if event["event"] == GPU_SICK:
                reason = f"GPU {event['gpu']} has turned sick: {event['message']}"
                logger.warning("%s", reason)
                if asks and self._job.sick_gpu == "at_once":
                    self._ask_for_restart(reason)

    def _ask_for_restart(self, reason: str) -> None:
        try:
            self._run.requests.mkdir(mode=0o700, exist_ok=True)
            write_json(self._run.requests / RESTART_REQUEST, {"reason": reason})
        except OSError as error:
            logger.warning("the run cannot be asked to start again without it: %s", error)

    def _look_at_run(self) -> None:
        if self._watch is None:
            return
        self._facts = self._watch.look()
        over = self._facts.state in ("done", "interrupted")
        if over and not self._over:
            self._look_once_more()
            self._record()
        elif self._over and not over:
            self._begin_anew()
        self._over = over
        try:
            self._room = room_of(self._run)
        except OSError as error:
            logger.warning("%s cannot be looked at: %s", self._run.path, error)

    def _begin_anew(self) -> None:
        """In a notebook a run that was over goes on: what its GPUs took in between is not the run's."""
        self._spent_at = self._phase_since = self._clock()
        self._phases = {}
        with self._lock:
            self._joules = self._meter.joules(self._job.gpus) or 0.0

    def _alert(self) -> None:
        """Look at all rules; pending ones are nobody's concern yet."""
        now = self._clock()
        self._states, told = alerts.step(self._states, self._alert_facts(now), now)
        for alert in told:
            if alert.state == "pending":
                continue
            note = {**alert.to_json(), "since": round(time.time() - (now - alert.since), 3), "node": self._job.node}
            self._tell({"event": "alert", **note})
            self._sinks.send({"time": round(time.time(), 3), "run": str(self._run.path), **note})

    def _alert_facts(self, now: float) -> dict[str, dict[str, float]]:
        facts: dict[str, dict[str, float]] = {}
        with self._lock:
            recent = {uuid: list(samples) for uuid, samples in self._recent.items()}
        trains = self._facts is None or (self._facts.state == "running" and self._facts.step is not None)
        latest = self.sampler.latest
        here = {sample.gpu.uuid for sample in latest.gpus} if latest is not None else set()
        for uuid in self._job.gpus:
            verdict, samples = self._health.verdicts.get(uuid), recent.get(uuid)
            findings = verdict.findings if verdict is not None else None if self._health.late else ()
            xids = self._health.xids_of(uuid, samples[-1].gpu.parent if samples else None)
            if samples and uuid in here and self.sampler.stuck is None:
                facts[uuid] = gpu_facts(samples, findings, xids, has_work=trains)
            else:
                facts[uuid] = health_facts(findings, xids)
        if self._facts is not None:
            facts[str(self._run.path)] = run_facts(self._facts, *self._room)
        if self._job.gpus:
            age = self.sampler.age_s()
            facts[self._job.node] = {"driver_age_s": now - self._began if age is None else age}
        return facts

    def _look_once_more(self) -> None:
        """Before the last record: a run that was shorter than the time between two looks has taken energy too."""
        if self.sampler.running and not self._over:
            self.sampler.look_within(LAST_LOOK_S)

    def _record(self) -> None:
        """A line about all looks since the one before; nothing where nobody told anything, or the run is over."""
        if self._over:
            return
        since, now = self._spent_at, self._clock()
        self._spend(now)
        self._end_phase(self._phase)
        phase, self._phases = max(self._phases, key=self._phases.__getitem__), {}
        gpus = {uuid: self._statistics(uuid, since) for uuid in self._job.gpus}
        known = {uuid: fields for uuid, fields in gpus.items() if fields}
        if not known:
            return
        step = self._job.step if self._facts is None or self._facts.step is None else self._facts.step
        spent = {"energy_j": self._spent.energy_j, "gpu_s": self._spent.gpu_s, "cost": self._spent.cost}
        record = {"kind": "gpu", "step": step, "elapsed_s": round(now - self._zero, 3), "node": self._job.node}
        record |= {"phase": phase, "seconds": round(now - since, 3)}
        _write(self._lines, {**record, "gpus": known, **{name: round(value, 6) for name, value in spent.items()}})

    def _end_phase(self, following: str) -> None:
        now = self._clock()
        self._phases[self._phase] = self._phases.get(self._phase, 0.0) + now - self._phase_since
        self._phase, self._phase_since = following, now

    def _spend(self, now: float) -> None:
        """Add what was taken since the last time; kept in a file that no resume takes back."""
        with self._lock:
            joules = self._meter.joules(self._job.gpus) or 0.0
        seconds = (now - self._spent_at) * len(self._job.gpus)
        self._spent = self._spent.plus(joules - self._joules, seconds, self._config)
        self._joules, self._spent_at = joules, now
        if not self._job.gpus:
            return
        try:
            write_spending(spending_file(self._run, self._job.node), self._spent)
        except OSError as error:
            logger.warning("what the run has taken cannot be kept: %s", error)

    def _statistics(self, uuid: str, since: float) -> dict[str, dict[str, float]]:
        found = {}
        after = math.nextafter(since, math.inf)  # a look of that very moment is in the record before
        for name in RECORDED:
            window = self.sampler.history.window(uuid, name, since=after)
            if window is not None:
                found[name] = {key: _short(getattr(window, key)) for key in ("mean", "min", "max", "p95")}
        return found

    def _tell(self, event: dict[str, Any]) -> None:
        _write(self._events, event)


def _own_lines(run: RunDir, job: RecordingJob) -> Path:
    """Where another machine than the first has its lines, those of updates that a resume makes again dropped."""
    path = run.logs / f"gpus_{job.node}.jsonl"
    keep_lines(path, lambda record: bool(record.get("step", 0) <= job.step))
    return path


def _write(writer: LineWriter, record: dict[str, Any]) -> None:
    """Append it; on a full disk that is the run's own matter, and not to be told every few seconds."""
    try:
        writer.write(record)
    except OSError as error:
        logger.info("%s", error)


def _short(value: float) -> float:
    """Four digits, which is more than sensors are good for: a day's records of eight GPUs are tens of megabytes."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
