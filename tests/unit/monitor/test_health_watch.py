"""Health looked at again and again, over a scripted NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from drumline.hardware.xid_events import XidListener
from drumline.hardware.xids import Xid
from drumline.monitor import health_watch
from drumline.monitor.health_watch import Health, HealthWatch
from tests.simulated_nvml import NOT_SUPPORTED, SimulatedGpu, SimulatedNvml


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
        return (told if len(asked) == 1 else []), None

    monkeypatch.setattr(health_watch, "read_xids", read)
    watch = HealthWatch(nvml)
    found = until(watch, lambda found: found.xids)
    assert [(xid.uuid, xid.code) for xid in found.xids] == [("GPU-a", 48), (None, 13)]
    assert [finding.code for finding in found.verdicts["GPU-a"].findings] == ["xid_48"]
    watch()
    assert asked[1] >= asked[0]
    watch.close()


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
    assert found.verdicts == {}
