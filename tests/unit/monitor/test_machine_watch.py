from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.config.monitor import AlertsConfig, MonitorConfig
from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.xids import Xid
from drumline.monitor import machine_watch
from drumline.monitor.health_watch import Health
from drumline.monitor.machine_watch import MachineWatch, Sources
from tests.unit.monitor.scenes import RUN, SICK, sample


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEALTH_EVERY_S", "RUNS_EVERY_S", "ALERTS_EVERY_S"):
        monkeypatch.setattr(machine_watch, name, 0.002)


def until(true: Callable[[], object], limit_s: float = 10.0) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.002)


def now(*samples: GpuSample) -> Snapshot:
    return Snapshot(time.time(), "nvml 580.159", samples)


def quiet(**fields: object) -> MonitorConfig:
    return MonitorConfig.model_validate({"every_s": 0.005, "alerts": {"enabled": False}, **fields})


def test_the_scene_brings_together_what_is_known() -> None:
    sources = Sources(
        lambda: now(sample(0, time=time.time()), sample(1, time=time.time())),
        lambda: lambda: Health({"GPU-0001": SICK}),
        lambda: [RUN],
    )
    with MachineWatch(quiet(price_per_kwh=0.5, price_per_gpu_hour=2.0), sources) as watch:
        watch.wait()
        until(lambda: len(list(watch.scene().series("GPU-0000", "power_w"))) > 2)
        shown = watch.scene()
    assert [each.gpu.index for each in shown.snapshot.gpus] == [0, 1]
    assert shown.verdicts["GPU-0001"] == SICK
    assert list(shown.runs) == [RUN]
    assert shown.price_per_hour == pytest.approx(2 * 2.0 + 2 * 0.612 * 0.5)
    ages = [age for age, _ in shown.series("GPU-0000", "power_w")]
    assert ages == sorted(ages, reverse=True) and all(age >= 0 for age in ages)
    assert shown.activity(sample(0, utilization=0.0)) == "idle"


def test_a_driver_that_hangs_holds_up_nobody() -> None:
    released = threading.Event()

    def hang() -> Snapshot:
        released.wait(30.0)
        return now()

    began = time.monotonic()
    with MachineWatch(quiet(), Sources(hang)) as watch:
        watch.wait(limit_s=0.01)
        assert watch.scene().snapshot.source == "not read yet"
        released.set()
    assert time.monotonic() - began < 5.0


def test_without_a_gpu_nobody_is_asked_for_health() -> None:
    def refuse() -> Callable[[], Health]:
        raise AssertionError

    with MachineWatch(quiet(), Sources(lambda: Snapshot(0.0, "no NVIDIA driver", no_gpu=True), refuse)) as watch:
        watch.wait()
        assert watch.health() == Health()
        assert watch.runs() == []


def test_every_xid_is_counted_once() -> None:
    xids = [Xid("GPU-0000", None, 31, 1.0, "", "event"), Xid("GPU-0000", None, 31, 2.0, "", "event")]
    later = [*xids[1:], Xid(None, None, 79, 3.0, "", "kernel log")]
    looks = [xids[:1], xids, xids, later]

    def look() -> Health:
        return Health(xids=tuple(looks.pop(0) if len(looks) > 1 else looks[0]))

    with MachineWatch(quiet(), Sources(lambda: now(sample(0)), lambda: look)) as watch:
        until(lambda: len(looks) == 1 and len(watch.xid_counts()) == 2)
        assert watch.xid_counts() == {("GPU-0000", 31): 2, (None, 79): 1}


def test_health_that_is_late_keeps_its_last_value_and_ages_and_xids_go_on() -> None:
    late = Health(xids=(Xid("GPU-0000", None, 119, 1.0, "", "event"),), late=True)
    with MachineWatch(quiet(), Sources(lambda: now(sample(0)), lambda: lambda: late)) as watch:
        watch.wait()
        with pytest.raises(TimeoutError, match="does not answer"):
            watch.health()
        assert watch.xid_counts() == {("GPU-0000", 119): 1}


def test_xids_that_nobody_reads_are_not_fresh() -> None:
    watch = MachineWatch(quiet(), Sources(lambda: now(sample(0)), lambda: Health))
    with pytest.raises(TimeoutError, match="not read"):
        watch.xid_counts()


def test_xids_from_before_the_watch_are_held_against_a_gpu_until_they_are_dealt_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_watch, "PAST_EVERY_S", 0.005)
    new, old = (Finding(f"xid_{code}", "fail", f"XID {code}", "restart", "a catalogue") for code in (48, 79))
    past = {"GPU-0000": Verdict("GPU-0000", "fail", (replace(new, message="earlier"), old, SICK.findings[0]))}
    ok = Verdict("GPU-0000", "fail", (new,))
    sources = Sources(lambda: now(sample(0)), lambda: lambda: Health({"GPU-0000": ok}), past=lambda: dict(past))
    with MachineWatch(quiet(), sources) as watch:
        watch.wait()
        assert [finding.code for finding in watch.health().verdicts["GPU-0000"].findings] == ["xid_48", "xid_79"]
        past.clear()
        until(lambda: watch.health().verdicts["GPU-0000"] == ok)


def test_a_sick_gpu_raises_one_alarm_that_is_shown_and_sent(tmp_path: Path) -> None:
    file = tmp_path / "alerts.jsonl"
    config = MonitorConfig(every_s=0.005, alerts=AlertsConfig(file=file))
    sick = [True]
    sources = Sources(
        lambda: now(sample(0, time=time.time()), sample(1, time=time.time())),
        lambda: lambda: Health({"GPU-0001": SICK} if sick else {"GPU-0001": Verdict("GPU-0001", "ok")}),
        lambda: [RUN],
    )

    def firing(watch: MachineWatch) -> list[tuple[str, str]]:
        return [(alert.rule, alert.subject) for alert in watch.scene().alerts if alert.state == "firing"]

    with MachineWatch(config, sources) as watch:
        until(lambda: firing(watch) == [("health_failed", "GPU-0001")])
        assert abs(watch.scene().alerts[0].since - time.time()) < 60
        sick.clear()
        until(lambda: not firing(watch))
    notes = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(note["rule"], note["state"]) for note in notes] == [
        ("health_failed", "firing"),
        ("health_failed", "resolved"),
    ]
    assert abs(notes[0]["since"] - time.time()) < 60
