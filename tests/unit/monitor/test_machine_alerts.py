from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.config.monitor import AlertsConfig, MonitorConfig
from drumline.hardware.health import Verdict
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.xids import Xid
from drumline.monitor.health_watch import Health
from drumline.monitor.machine_alerts import MachineAlerts, RunHere, with_room
from drumline.monitor.sampler import Sampler
from tests.unit.monitor.scenes import NOW, RUN, SICK, sample


class Machine:
    """Samples that come when a test says so, and a rule or some."""

    def __init__(self, file: Path, *rules: dict[str, Any]) -> None:
        own = [rule["name"] for rule in rules]
        config = AlertsConfig.model_validate({"rules": list(rules), "file": str(file), "min_severity": "info"})
        self.alerts = MachineAlerts(MonitorConfig(alerts=config))
        self.file, self.own = file, own
        self.snapshot = Snapshot(time.time(), "nvml 580.159")
        self.sampler = Sampler(source=lambda: self.snapshot, on_sample=self.alerts.add)

    def sees(self, *samples: GpuSample) -> None:
        self.snapshot = replace(self.snapshot, gpus=samples, time=max(each.time for each in samples))
        self.sampler.look()

    def told(self, health: Health | None = None, runs: tuple[RunHere, ...] = ()) -> dict[tuple[str, str], float]:
        """What the test's own rules say now: the value by rule and subject."""
        found = self.alerts.step(self.sampler, health or Health(), runs)
        return {(alert.rule, alert.subject): alert.value for alert in found if alert.rule in self.own}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Any]:
    made: list[Machine] = []

    def make(*rules: dict[str, Any]) -> Machine:
        made.append(Machine(tmp_path / "alerts.jsonl", *rules))
        return made[-1]

    yield make
    for machine in made:
        machine.alerts.close()


def test_a_value_is_of_the_last_minute(machines: Any) -> None:
    machine = machines({"name": "warm", "metric": "temperature_c", "above": 50.0})
    for age, temperature in ((90.0, 1000.0), (30.0, 60.0), (0.0, 70.0)):
        machine.sees(sample(0, time=5000.0 - age, temperature_c=temperature))
    assert machine.told() == {("warm", "GPU-0000"): 65.0}


def test_a_gpu_without_a_run_may_idle(machines: Any) -> None:
    machine = machines({"name": "idle", "metric": "idle", "above": 0.5})
    machine.sees(sample(0, utilization=0.0), sample(1, utilization=0.0))
    assert machine.told() == {}
    assert machine.told(runs=(RunHere(replace(RUN, state="done")),)) == {}
    assert machine.told(runs=(RunHere(RUN),)) == {("idle", "GPU-0000"): 1.0}


def test_runs_and_the_machine_have_alerts_too(machines: Any) -> None:
    rules = (
        {"name": "dear", "metric": "cost", "above": 1.0},
        {"name": "full", "metric": "disk_room", "below": 2.0},
        {"name": "old", "metric": "driver_age_s", "above": -1.0},
    )
    machine = machines(*rules)
    machine.sees(sample(0))
    runs = (RunHere(RUN, free_bytes=3 << 30, checkpoint_bytes=2 << 30),)
    told = machine.told(runs=runs)
    assert told["dear", "runs/small"] == 1.25
    assert told["full", "runs/small"] == 1.5
    assert {rule for rule, _ in told} == {"dear", "full", "old"}


def test_a_machine_without_gpu_has_no_driver_that_could_be_silent(machines: Any) -> None:
    machine = machines({"name": "old", "metric": "driver_age_s", "above": -1.0})
    machine.snapshot = Snapshot(0.0, "no NVIDIA driver", no_gpu=True)
    machine.sampler.look()
    assert machine.told() == {}


def test_a_lost_gpu_that_is_sick_is_told_though_it_gives_no_values(machines: Any) -> None:
    machine = machines({"name": "sick", "metric": "health_failures", "above": 0.0})
    machine.sees(sample(0))
    assert machine.told(Health({"GPU-0001": SICK})) == {("sick", "GPU-0001"): 1.0}
    assert machine.told(Health({"GPU-0001": Verdict("GPU-0001", "ok")})) == {}


SICK_RULES = (
    {"name": "sick", "metric": "health_failures", "above": 0.0},
    {"name": "broken", "metric": "xid_failures", "above": 0.0},
)


def test_a_driver_that_does_not_answer_does_not_make_a_gpu_well(machines: Any) -> None:
    machine = machines(*SICK_RULES)
    machine.sees(sample(0), sample(1))
    assert machine.told(Health({"GPU-0001": SICK})) == {("sick", "GPU-0001"): 1.0}
    assert machine.told(Health(late=True)) == {("sick", "GPU-0001"): 1.0}
    assert machine.told(Health()) == {}


def test_an_xid_with_which_the_driver_falls_silent_is_told(machines: Any) -> None:
    machine = machines(*SICK_RULES)
    xids = (Xid("GPU-0000", None, 119, NOW, "", "event"),)
    assert machine.told(Health(xids=xids, late=True)) == {("broken", "GPU-0000"): 1.0}


def test_a_fault_of_a_gpu_in_parts_is_one_alarm(machines: Any) -> None:
    machine = machines(*SICK_RULES)
    whole = sample(1)
    parts = [replace(whole, gpu=replace(whole.gpu, uuid=f"MIG-{n}", parent="GPU-0001")) for n in range(2)]
    machine.sees(whole, *parts)
    verdicts = {each.gpu.uuid: replace(SICK, uuid=each.gpu.uuid) for each in (whole, *parts)}
    xids = (Xid("GPU-0001", None, 79, NOW, "", "event"),)
    expected = {("sick", "GPU-0001"): 1.0, ("broken", "GPU-0001"): 1.0}
    assert machine.told(Health(verdicts, xids)) == expected
    machine.sampler._began = time.monotonic() - 60.0  # the driver hangs in a look
    assert machine.told(Health(verdicts, xids)) == expected
    container = machines(*SICK_RULES)  # which shows no more
    container.sees(*parts)
    assert container.told(Health({"MIG-0": verdicts["MIG-0"]})) == {("sick", "MIG-0"): 1.0}


def test_of_a_run_that_is_over_only_its_end_is_told(machines: Any) -> None:
    names = ("loss_rise", "loss_not_finite", "cost", "failed")
    machine = machines(*({"name": name, "metric": name, "above": 0.0} for name in names))
    ran = replace(RUN, loss=float("nan"), loss_rise=1.0)
    assert {rule for rule, _ in machine.told(runs=(RunHere(ran),))} == {"loss_rise", "loss_not_finite", "cost"}
    over = machines(*({"name": name, "metric": name, "above": 0.0} for name in names))
    assert {rule for rule, _ in over.told(runs=(RunHere(replace(ran, state="failed")),))} == {"failed"}


def test_a_run_of_another_machine_is_that_one_s_to_tell_of(machines: Any) -> None:
    machine = machines({"name": "failed", "metric": "failed", "above": 0.5})
    assert machine.told(runs=(RunHere(replace(RUN, state="failed", here=False)),)) == {}


def test_what_is_only_pending_is_nobodys_concern(machines: Any) -> None:
    held = {"name": "held", "metric": "power_w", "above": 1.0, "for_s": 1000.0}
    machine = machines(held, {"name": "now", "metric": "power_w", "above": 1.0})
    machine.sees(sample(0))
    assert set(machine.told()) == {("held", "GPU-0000"), ("now", "GPU-0000")}
    machine.alerts.close()
    assert [json.loads(line)["rule"] for line in machine.file.read_text().splitlines()] == ["now"]


def test_the_room_of_a_run_is_that_of_its_disk(tmp_path: Path) -> None:
    found = with_room(replace(RUN, path=tmp_path))
    assert found.free_bytes is not None and found.free_bytes > 0
    assert found.checkpoint_bytes == 0
    assert with_room(replace(RUN, path=tmp_path / "gone")) == RunHere(replace(RUN, path=tmp_path / "gone"))
