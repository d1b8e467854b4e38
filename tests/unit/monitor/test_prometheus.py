"""The collector tells at each scrape what is known then, of whatever is still there, and no more."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Gauge

from drumline.errors import MissingExtra
from drumline.hardware.health import Verdict
from drumline.hardware.records import Snapshot
from drumline.monitor.history import History
from drumline.monitor.prometheus import STALE_S, Collector, expose
from drumline.monitor.sampler import Sampler
from tests.unit.monitor.snapshots import H100, gpu, snapshot
from tests.unit.monitor.whole_machine import Machine, busy, run, scrape


def looked(machine: Machine) -> Machine:
    machine.sampler.look()
    return machine


def test_everything_is_told_under_uuid_and_name() -> None:
    found = looked(Machine()).scrape()
    assert {name for name in found if name.startswith("drumline_gpu_")}
    for name, samples in found.items():
        for labels, value in samples:
            if name.startswith("drumline_gpu_") and labels.get("gpu") == "":
                assert (name, value) == ("drumline_gpu_xids_total", 0.0)
            elif name.startswith("drumline_gpu_"):
                assert labels["gpu"] in ("GPU-0", "GPU-1") and labels["name"] == H100, name
            if name.startswith("drumline_run_"):
                assert labels["run"] == "small", name
    assert found["drumline_gpu_power_watts"][1] == ({"gpu": "GPU-1", "name": H100}, 512.5)
    assert found["drumline_gpu_energy_joules_total"][0][1] == 1e6


def test_described_are_all_that_is_ever_told_and_a_registry_takes_it() -> None:
    machine = looked(Machine())
    assert [family.name for family in machine.collector.describe()] == [f.name for f in machine.collector.collect()]
    registry = CollectorRegistry()
    registry.register(machine.collector)
    assert registry.get_sample_value("drumline_gpus") == 2
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Gauge("drumline_gpus", "another", registry=registry)


def test_plain_text_for_who_asks_for_nothing_else() -> None:
    body, content_type = expose(looked(Machine()).collector)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"# TYPE drumline_gpu_energy_joules_total counter\n" in body


def test_without_other_sources_nothing_is_told_of_them() -> None:
    sampler = Sampler(source=lambda: snapshot(busy(0)))
    sampler.look()
    found = scrape(Collector(sampler))
    assert "drumline_gpu_power_watts" in found
    assert not [
        name for name in found if "_run" in name or "_xid" in name or "_health" in name or "_source_age" in name
    ]


def test_a_machine_without_gpu_says_so() -> None:
    machine = Machine(snapshot=Snapshot(1000.0, "no NVIDIA driver", no_gpu=True), runs=[], xids={}, verdicts={})
    found = looked(machine).scrape()
    assert found["drumline_gpus"] == [({}, 0.0)]
    assert found["drumline_source_info"] == [({"source": "no NVIDIA driver"}, 1.0)]
    assert not [name for name in found if name.startswith("drumline_gpu_")]


def test_a_gpu_that_is_gone_has_no_values_but_its_verdict_and_xids() -> None:
    machine = looked(Machine())
    machine.scrape()
    machine.snapshot = replace(snapshot(busy(0)), problems=("GPU 1 left out: the GPU is lost: it fell off the bus",))
    machine.xids = {("GPU-1", 79): 1}
    found = looked(machine).scrape()
    assert [labels["gpu"] for labels, _ in found["drumline_gpu_power_watts"]] == ["GPU-0"]
    assert found["drumline_gpus_left_out"] == [({}, 1.0)]
    assert ({"gpu": "GPU-1", "name": H100, "status": "fail"}, 1.0) in found["drumline_gpu_health"]
    assert ({"gpu": "GPU-1", "name": H100, "xid": "79"}, 1.0) in found["drumline_gpu_xids_by_code_total"]


def test_xids_are_counters_from_nought_by_what_they_mean() -> None:
    machine = looked(Machine(xids={}))
    found = machine.scrape()
    assert [value for _, value in found["drumline_gpu_xids_total"]] == [0.0] * 9, "an increase from nothing is not seen"
    assert {labels["gpu"] for labels, _ in found["drumline_gpu_xids_total"]} == {"GPU-0", "GPU-1", ""}
    assert "drumline_gpu_xids_by_code_total" not in found
    machine.xids = {("GPU-0", 13): 1, ("GPU-0", 79): 1, ("GPU-0", 48): 2, (None, 63): 1}
    totals = {(labels["gpu"], labels["status"]): value for labels, value in machine.scrape()["drumline_gpu_xids_total"]}
    assert {key: value for key, value in totals.items() if value} == {
        ("GPU-0", "ok"): 1.0,
        ("GPU-0", "fail"): 3.0,
        ("", "warn"): 1.0,
    }


def test_one_fault_of_a_gpu_in_parts_is_told_once() -> None:
    part = replace(busy(1), gpu=replace(gpu(1), uuid="MIG-1", parent="GPU-1"))
    machine = looked(Machine(snapshot=snapshot(busy(0), busy(1), part)))
    machine.verdicts["MIG-1"] = replace(machine.verdicts["GPU-1"], uuid="MIG-1")
    found = machine.scrape()
    assert [labels["gpu"] for labels, _ in found["drumline_gpu_health_finding"]] == ["GPU-1"]
    assert "MIG-1" in {labels["gpu"] for labels, _ in found["drumline_gpu_power_watts"]}


def test_a_run_of_another_machine_is_that_one_s_to_tell_of() -> None:
    machine = looked(Machine(runs=[run("a"), replace(run("b"), state="failed", here=False)]))
    assert [labels["run"] for labels, _ in machine.scrape()["drumline_run_step"]] == ["a"]


def test_health_that_is_well_again_leaves_nothing() -> None:
    machine = looked(Machine())
    assert "drumline_gpu_health_finding" in machine.scrape()
    machine.verdicts["GPU-1"] = Verdict("GPU-1", "ok")
    found = machine.scrape()
    assert "drumline_gpu_health_finding" not in found
    assert [value for labels, value in found["drumline_gpu_health"] if labels["status"] == "ok"] == [1.0, 1.0]


def test_runs_of_one_name_are_told_apart_by_their_folders() -> None:
    machine = looked(Machine(runs=[run("a", "/x"), run("a", "/y"), run("b", "/x")]))
    assert [labels["run"] for labels, _ in machine.scrape()["drumline_run_step"]] == ["/x/a", "/y/a", "b"]


def test_while_the_driver_hangs_the_last_values_are_told_with_their_age_and_then_none() -> None:
    machine = looked(Machine())
    machine.now += STALE_S
    found = machine.scrape()
    assert found["drumline_sample_age_seconds"] == [({}, STALE_S)]
    assert len(found["drumline_gpu_power_watts"]) == 2
    machine.now += 1
    found = machine.scrape()
    assert found["drumline_sample_age_seconds"] == [({}, STALE_S + 1)]
    assert "drumline_gpu_power_watts" not in found
    assert "drumline_run_step" in found, "run directories can be read without the driver"


def test_a_driver_that_hangs_at_the_first_look_is_told() -> None:
    machine = Machine()
    asked, go_on = threading.Event(), threading.Event()

    def hang() -> Snapshot:
        asked.set()
        go_on.wait()
        return machine.snapshot

    with Sampler(source=hang, clock=machine.clock) as sampler:
        collector = Collector(sampler, clock=machine.clock)
        try:
            assert asked.wait(5)
            machine.now += 6
            found = scrape(collector)
        finally:
            go_on.set()
    assert found["drumline_sample_age_seconds"] == [({}, 6.0)]
    assert found["drumline_driver_stuck"] == [({}, 1.0)]


def test_a_source_that_fails_ages_and_takes_nothing_else_along(caplog: pytest.LogCaptureFixture) -> None:
    machine = looked(Machine())
    machine.scrape()

    def fail() -> list[object]:
        raise OSError("stale file handle")

    collector = Collector(machine.sampler, runs=fail, xids=lambda: machine.xids, clock=machine.clock)  # type: ignore[arg-type]
    machine.now += 30
    found = scrape(collector)
    assert found["drumline_source_age_seconds"] == [({"source": "runs"}, 30.0), ({"source": "xids"}, 0.0)]
    assert "drumline_run_step" not in found and "drumline_gpu_xids_total" in found
    assert "stale file handle" in caplog.text


def test_a_day_of_gpu_instances_and_runs_that_come_and_go_leaves_nothing() -> None:
    """A scrape an hour; the system tests have a day of seconds."""
    machine = Machine()

    def day() -> int:
        for minute in range(0, 24 * 60, 60):
            machine.now += 3600
            instance = replace(busy(1), gpu=replace(gpu(1), uuid=f"MIG-{machine.now}", parent="GPU-1"))
            machine.snapshot = snapshot(busy(0), instance, time=machine.now)
            machine.verdicts = {uuid: Verdict(uuid, "ok") for uuid in ("GPU-0", instance.gpu.uuid)}
            machine.runs = [run(f"run-{machine.now}")]
            machine.xids = {("GPU-0", 13): minute}
            machine.sampler.history = History(1)  # what that keeps is another test's matter
            body, _ = expose(looked(machine).collector)
        return body.count(b"\n")

    lines = day()
    gc.collect()
    tracemalloc.start()
    try:
        assert day() == lines
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 40_000, f"{grown} bytes, of which one scrape is about 20,000, are still held"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(MissingExtra, match=r"drumline\[serve\]"):
        Collector(Sampler(source=snapshot))
