"""A machine as a test says it is, what is recorded of it, and how to read that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.config.monitor import MonitorConfig
from drumline.hardware.records import GpuSample, Snapshot
from drumline.launcher.recording import RecordingJob
from drumline.monitor.health_watch import Health
from drumline.monitor.recording import Recording, Sources
from drumline.rundir import LineWriter, RunDir, read_lines
from tests.unit.monitor.snapshots import sample, snapshot

PRICES = {"price_per_kwh": 0.5, "price_per_gpu_hour": 3.6}


@dataclass
class Machine:
    """Two GPUs of the run and a third one, as the test says they are."""

    clock: float = 100.0
    health: Health = field(default_factory=Health)
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def look(self) -> Snapshot:
        return snapshot(*(self.sample(index) for index in range(3) if index not in self.gone), time=self.clock)

    def sample(self, index: int) -> GpuSample:
        values = {"utilization": 0.9, "power_w": 500.0, "energy_j": 500.0 * self.clock, "temperature_c": 60.0}
        return sample(index, self.clock, **{**values, **self.values.get(index, {})})

    def sources(self) -> Sources:
        return Sources(self.look, lambda: self.health, lambda: self.clock)


def job_of(run: RunDir, **more: Any) -> RecordingJob:
    monitor = MonitorConfig.model_validate({**PRICES, **more.pop("monitor", {})}).model_dump(mode="json")
    values = {
        "run_dir": run.path,
        "gpus": ("GPU-0", "GPU-1"),
        "node": "node0",
        "machine": 0,
        "parent": 1,
        "step": 0,
        "elapsed_s": 30.0,
        "written": time.time(),
        "monitor": monitor,
    }
    return RecordingJob.from_line(RecordingJob(**{**values, **more}).to_line())


@contextmanager
def recording(machine: Machine, job: RecordingJob) -> Iterator[Recording]:
    found = Recording(job, machine.sources())
    yield found
    found.close()


def passes(recorded: Recording, machine: Machine, seconds: int) -> None:
    """Time in which the sampler looks once a second and the recorder ticks."""
    for _ in range(seconds):
        machine.clock += 1
        recorded.sampler.look()
        recorded.tick()


def lines(path: Path) -> list[dict[str, Any]]:
    return [record for record in read_lines(path) if record.get("kind") == "gpu"]


def events(run: RunDir) -> list[dict[str, Any]]:
    return list(read_lines(run.events))


def trains(run: RunDir, step: int) -> None:
    writer = LineWriter(run.metrics)
    writer.write({"kind": "train", "step": step, "loss": 2.0, "elapsed_s": float(step)})
    writer.close()
