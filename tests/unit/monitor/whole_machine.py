"""A machine of which everything is known: two GPUs, their health and XIDs, a run; and the collector over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import GpuProcess, GpuSample, Pipes, Snapshot
from drumline.monitor.prometheus import Collector, expose
from drumline.monitor.runs import RunFacts
from drumline.monitor.sampler import Sampler
from tests.unit.monitor.snapshots import sample, snapshot

GIB = 1 << 30
Labels = Mapping[str, str]


def busy(index: int, time: float = 1000.0) -> GpuSample:
    """An H100 at work, every field of it known."""
    return sample(
        index,
        time,
        utilization=0.98,
        memory_utilization=0.4,
        memory_used_bytes=60 * GIB,
        memory_free_bytes=20 * GIB,
        temperature_c=61.0,
        memory_temperature_c=72.0,
        slowdown_temperature_c=87.0,
        power_w=512.5,
        power_limit_w=700.0,
        energy_j=1e6,
        fan=0.3,
        sm_clock_mhz=1755,
        max_sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        throttled_by=("power limit",),
        pcie_tx_bytes_per_s=2e6,
        pcie_rx_bytes_per_s=3e6,
        pcie_generation=5,
        max_pcie_generation=5,
        pcie_width=16,
        max_pcie_width=16,
        nvlink_tx_bytes=5 * GIB,
        nvlink_rx_bytes=6 * GIB,
        pipes=Pipes(1.0, 0.9, 0.5, 0.6, 0.3, 0.2, 0.1, 0.0),
        processes=(
            GpuProcess(10, "compute", 40 * GIB, ours=True),
            GpuProcess(11, "compute", 19 * GIB, ours=True),
            GpuProcess(12, "compute", GIB, "game", "eve"),
        ),
    )


def run(name: str = "small", folder: str = "/runs") -> RunFacts:
    """A run that goes on, every field of it known."""
    return RunFacts(
        path=Path(folder, name),
        name=name,
        state="running",
        step=120,
        total_steps=1000,
        epoch=1,
        step_age_s=4.0,
        overdue_s=0.0,
        loss=2.5,
        eval_loss=2.7,
        loss_rise=0.0,
        units_per_s=5e4,
        unit="tokens",
        mfu=0.41,
        elapsed_s=300.0,
        eta_s=2200.0,
        gpus=("GPU-0", "GPU-1"),
        world_size=2,
        energy_j=3e5,
        gpu_s=600.0,
        cost=1.25,
        alerts=("low_use",),
    )


SICK = Verdict(
    "GPU-1", "fail", (Finding("rows_failed", "fail", "a row could not be replaced", "have it replaced", ""),)
)


@dataclass
class Machine:
    """What the collector's sources say, to be changed by a test; `clock` is everybody's."""

    now: float = 1000.0
    snapshot: Snapshot = field(default_factory=lambda: snapshot(busy(0), busy(1)))
    runs: list[RunFacts] = field(default_factory=lambda: [run()])
    xids: dict[tuple[str | None, int], int] = field(default_factory=lambda: {("GPU-1", 63): 2, ("GPU-1", 13): 1})
    verdicts: dict[str, Verdict] = field(default_factory=lambda: {"GPU-0": Verdict("GPU-0", "ok"), "GPU-1": SICK})

    def __post_init__(self) -> None:
        self.sampler = Sampler(source=lambda: self.snapshot, clock=self.clock)
        self.collector = Collector(
            self.sampler, lambda: self.runs, lambda: self.xids, lambda: self.verdicts, clock=self.clock
        )

    def clock(self) -> float:
        """Seconds that only a test moves on."""
        return self.now

    def scrape(self) -> dict[str, list[tuple[Labels, float]]]:
        """What a strict reader of OpenMetrics finds, by name."""
        return scrape(self.collector)


def scrape(collector: Collector) -> dict[str, list[tuple[Labels, float]]]:
    """Labels and value of each sample by its name."""
    body, content_type = expose(collector, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    found: dict[str, list[tuple[Labels, float]]] = {}
    families: Any = text_string_to_metric_families  # it has no types
    for family in families(body.decode()):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does, for 5 s at most."""
    import time

    limit = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)
