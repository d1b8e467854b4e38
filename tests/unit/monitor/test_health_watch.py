"""Health looked at again and again, over a scripted NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from drumline.hardware.health_facts import HealthFacts
from drumline.hardware.records import GpuSample
from drumline.hardware.xid_events import XidListener
from drumline.hardware.xids import Xid
from drumline.monitor import health_watch
from drumline.monitor.health_watch import Health, HealthWatch
from tests.simulated_nvml import GPU_IS_LOST, NOT_SUPPORTED, SimulatedGpu, SimulatedNvml


@pytest.fixture
def nvml() -> SimulatedNvml:
    return SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")])


@pytest.fixture
def watch(nvml: SimulatedNvml) -> Iterator[HealthWatch]:
    watch = HealthWatch(nvml, XidListener(nvml, wait_ms=5))
    yield watch
    nvml.release()
    watch.close()


def until(look: Callable[[], Health], true: Callable[[Health], object]) -> Health:
    limit = time.monotonic() + 5
    while not true(found := look()):
        assert time.monotonic() < limit, found
    return found


def wait_for(true: Callable[[], object]) -> None:
    limit = time.monotonic() + 5
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_sound_gpus_are_ok(watch: HealthWatch) -> None:
    found = watch()
    assert {uuid: verdict.status for uuid, verdict in found.verdicts.items()} == {"GPU-a": "ok", "GPU-b": "ok"}
    assert found.xids == ()


def test_an_xid_is_heard_and_held_against_its_gpu(nvml: SimulatedNvml, watch: HealthWatch) -> None:
    until(watch, lambda found: watch.listener.listening.is_set())
    nvml.post_xid("GPU-b", 79)
    found = until(watch, lambda found: found.xids)
    assert [(xid.uuid, xid.code) for xid in found.xids] == [("GPU-b", 79)]
    assert (found.verdicts["GPU-a"].status, found.verdicts["GPU-b"].status) == ("ok", "fail")
    assert [xid.code for xid in watch().xids] == [79]  # for an hour
    assert found.xids_of("GPU-a") == []
    assert len(found.xids_of("MIG-1", "GPU-b")) == 1


def test_where_nvml_tells_of_no_xids_the_kernel_s_log_does(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a", pci="00000000:01:00.0")], {"nvmlEventSetCreate": NOT_SUPPORTED})
    now = time.time()
    told = [Xid(None, "0000:01:00.0", 48, now, "DBE", "kernel log"), Xid(None, None, 13, now, "", "kernel log")]
    asked = []

    def read(since: float) -> tuple[list[Xid], None]:
        asked.append(since)
        return [xid for xid in told if xid.time >= since], None

    monkeypatch.setattr(health_watch, "read_xids", read)
    watch = HealthWatch(nvml)
    told = [replace(xid, time=time.time()) for xid in told]
    found = until(watch, lambda found: found.xids)
    assert [(xid.uuid, xid.code) for xid in found.xids] == [("GPU-a", 48), (None, 13)]
    assert [finding.code for finding in found.verdicts["GPU-a"].findings] == ["xid_48"]
    assert len(watch().xids) == 2
    assert asked[-1] > asked[0]
    watch.close()


def test_after_a_fault_the_log_is_read_from_then_on_and_an_event_is_counted_once(
    nvml: SimulatedNvml, watch: HealthWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    log = [Xid("GPU-b", None, 63, began, "", "kernel log")]
    asked: list[float] = []

    def read(since: float) -> tuple[list[Xid], None]:
        asked.append(since)
        return [xid for xid in log if xid.time >= since], None

    monkeypatch.setattr(health_watch, "read_xids", read)
    until(watch, lambda found: watch.listener.listening.is_set())
    nvml.post_xid("GPU-b", 63)
    until(watch, lambda found: found.xids)
    watch()  # nothing is wrong: whatever the log has of this is known
    before = time.time()
    nvml.post_xid("GPU-a", 79)
    log += [Xid("GPU-a", None, code, before, "", "kernel log") for code in (79, 48)]
    wait_for(lambda: watch.listener._heard)
    nvml.errors["nvmlEventSetWait_v2"] = GPU_IS_LOST
    wait_for(lambda: watch.listener.fault)
    found = watch()
    assert asked and asked[0] > began
    assert sorted((xid.code, xid.origin) for xid in found.xids) == [
        (48, "kernel log"),
        (63, "event"),
        (79, "event"),
    ]


def test_a_log_that_cannot_be_read_is_tried_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")], {"nvmlEventSetCreate": NOT_SUPPORTED})
    asked: list[float] = []

    def refuse(since: float) -> tuple[list[Xid], str]:
        asked.append(since)
        return [], "no permission"

    monkeypatch.setattr(health_watch, "read_xids", refuse)
    watch = HealthWatch(nvml)
    until(watch, lambda found: asked)
    watch()
    assert len(asked) == 1
    watch._log_due = 0.0
    watch()
    assert len(asked) == 2 and asked[1] == asked[0], "what was written meanwhile is still wanted"
    watch.close()


def test_a_link_that_died_stays_dead(watch: HealthWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "WINDOW_S", 0.0)
    up = [18]

    def look(session: object) -> tuple[tuple[HealthFacts, ...], tuple[GpuSample, ...]]:
        return (HealthFacts("GPU-a", time.time(), nvlinks_up=up[0]),), ()

    monkeypatch.setattr(health_watch, "look", look)
    watch()
    up[0] = 17
    for _ in range(4):
        assert [finding.code for finding in watch().verdicts["GPU-a"].findings] == ["nvlink_down"]
    up[0] = 18
    assert watch().verdicts["GPU-a"].status == "ok"


def test_old_xids_are_let_go(watch: HealthWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.heard.append(Xid("GPU-a", None, 63, time.time() - 4000, "", "event"))
    watch.heard.append(Xid("GPU-a", None, 63, time.time() - 100, "", "event"))
    assert len(watch().xids) == 1


def test_a_lost_gpu_fails_and_the_other_is_sound(nvml: SimulatedNvml, watch: HealthWatch) -> None:
    watch()
    nvml.gpus[0].lost_after = 0
    found = watch()
    assert found.verdicts["GPU-b"].status == "ok"
    assert found.verdicts["GPU-a"].status == "fail"


def test_a_driver_that_hangs_leaves_what_xids_tell(
    nvml: SimulatedNvml, watch: HealthWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(watch, lambda found: watch.listener.listening.is_set())
    monkeypatch.setattr(health_watch, "LIMIT_S", 0.05)
    nvml.gpus[0].hangs = {"nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo"}
    nvml.post_xid("GPU-a", 119)
    found = until(watch, lambda found: found.xids)
    assert found.verdicts == {} and found.late
