"""The tables: names and units as Prometheus wants them, every field of a sample told, nothing made up."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from drumline.hardware.records import GpuProcess, GpuSample, Pipes, Snapshot
from drumline.monitor.gpu_metrics import GPU_ROWS, HEALTH_ROWS, XID_ROWS
from drumline.monitor.metrics_table import SOURCE_ROWS, WATCH_ROWS, Row, Value, Watch
from drumline.monitor.run_metrics import RUN_ROWS
from drumline.monitor.runs import RunFacts
from tests.unit.monitor.snapshots import gpu, sample
from tests.unit.monitor.whole_machine import GIB, busy, run

ALL: tuple[Row[Any], ...] = (*WATCH_ROWS, *SOURCE_ROWS, *GPU_ROWS, *HEALTH_ROWS, *XID_ROWS, *RUN_ROWS)
UNITS = {"seconds", "bytes", "ratio", "celsius", "watts", "hertz", "joules", "bytes_per_second", ""}


def read(name: str, subject: GpuSample | RunFacts) -> Value:
    (row,) = (row for row in ALL if row.name == name)
    return row.read(subject)


def test_names_are_distinct_and_end_with_their_base_unit() -> None:
    assert len({row.name for row in ALL}) == len(ALL)
    for row in ALL:
        assert re.fullmatch(r"drumline(_[a-z0-9]+)+", row.name)
        assert row.unit in UNITS and row.name.endswith(row.unit), row.name
        assert not row.name.endswith("_total"), "the formats add it"
        assert row.help[0].isupper() and row.help.endswith("."), row.name


def test_no_label_can_grow_with_processes_or_time() -> None:
    assert not {"pid", "user", "time", "step"} & {label for row in ALL for label in row.labels}


def test_a_gpu_of_which_nobody_says_anything_has_only_its_name_and_size() -> None:
    told = [row.name for row in GPU_ROWS if row.read(sample()) is not None]
    assert told == ["drumline_gpu_info", "drumline_gpu_memory_size_bytes"]


@pytest.mark.parametrize(
    "field", [field.name for field in fields(GpuSample) if field.name not in ("gpu", "time", "refused")]
)
def test_every_field_of_a_sample_is_told(field: str) -> None:
    whole = busy(0)
    unknown: dict[str, Any] = {field: None}
    without = replace(whole, **unknown)
    assert [row.name for row in GPU_ROWS if row.read(whole) is not None and row.read(without) is None]


@pytest.mark.parametrize("field", [field.name for field in fields(Pipes) if field.name != "window_s"])
def test_every_pipe_is_told(field: str) -> None:
    pipes = busy(0).pipes
    assert pipes is not None
    unknown: dict[str, Any] = {field: None}
    without = replace(busy(0), pipes=replace(pipes, **unknown))
    assert [row.name for row in GPU_ROWS if row.read(without) is None] == [f"drumline_gpu_{field}_ratio"]


def test_values_are_in_base_units() -> None:
    assert read("drumline_gpu_sm_clock_hertz", busy(0)) == 1.755e9
    assert read("drumline_gpu_memory_used_bytes", busy(0)) == 60 * GIB
    assert read("drumline_gpu_utilization_ratio", busy(0)) == 0.98


def test_processes_are_counted_by_whose_they_are() -> None:
    assert read("drumline_gpu_processes", busy(0)) == {("ours",): 2, ("others",): 1}
    assert read("drumline_gpu_process_memory_bytes", busy(0)) == {("ours",): 59 * GIB, ("others",): GIB}
    assert read("drumline_gpu_processes", sample(processes=())) == {("ours",): 0, ("others",): 0}


def test_memory_that_the_driver_keeps_to_itself_is_not_made_up() -> None:
    hidden = sample(processes=(GpuProcess(1, "compute", None, ours=True), GpuProcess(2, "compute", GIB)))
    assert read("drumline_gpu_process_memory_bytes", hidden) == {("others",): GIB}
    assert read("drumline_gpu_processes", hidden) == {("ours",): 1, ("others",): 1}


def test_every_cause_of_throttling_has_a_value_and_a_new_one_too() -> None:
    causes = read("drumline_gpu_throttled", sample(throttled_by=("heat (hardware)", "moonlight")))
    assert isinstance(causes, dict)
    assert {cause for (cause,), on in causes.items() if on} == {"heat (hardware)", "moonlight"}
    assert causes["power limit",] == 0.0


def test_an_instance_names_the_gpu_that_it_is_a_part_of() -> None:
    part = replace(sample(), gpu=replace(gpu(), uuid="MIG-1", parent="GPU-0", compute_capability=None))
    assert read("drumline_gpu_info", part) == {("0", "0000:01:00.0", "GPU-0", ""): 1.0}


def test_a_run_that_has_ended_is_on_no_gpu() -> None:
    assert read("drumline_run_gpu_info", run()) == {("GPU-0",): 1.0, ("GPU-1",): 1.0}
    assert read("drumline_run_gpu_info", replace(run(), state="done")) == {}
    states = read("drumline_run_state", replace(run(), state="killed"))
    assert isinstance(states, dict)
    assert {state for (state,), on in states.items() if on} == {"killed"}


@pytest.mark.parametrize(
    "field", [field.name for field in fields(RunFacts) if field.name not in ("name", "unit", "message", "here")]
)
def test_every_field_of_a_run_is_told(field: str) -> None:
    unknown: dict[str, Any] = {field: () if field in ("gpus", "alerts") else None}
    without = replace(run(), **unknown)
    assert [row.name for row in RUN_ROWS if row.read(run()) != row.read(without)]


def test_a_source_s_numbers_make_no_new_series() -> None:
    def told(source: str) -> Value:
        (row,) = (row for row in WATCH_ROWS if row.name == "drumline_source_info")
        return row.read(Watch(Snapshot(0.0, source), 0.0, 0, None))

    assert told("the driver has not answered for 17 s") == {("the driver has not answered for some s",): 1.0}
    assert told("nvml 580.159: process 4711 has it") == {("nvml 580.159: process some has it",): 1.0}


@pytest.mark.parametrize(
    ("seen", "unreadable"),
    [
        (Snapshot(0.0, "nvml 580.159: library and driver differ"), 1.0),
        (Snapshot(0.0, "no NVIDIA driver", no_gpu=True), 0.0),
        (Snapshot(0.0, "nvml 580.159", (sample(),)), 0.0),
        (None, None),
    ],
)
def test_gpus_that_cannot_be_read_at_all_are_told(seen: Snapshot | None, unreadable: float | None) -> None:
    (row,) = (row for row in WATCH_ROWS if row.name == "drumline_gpus_unreadable")
    assert row.read(Watch(seen, 0.0, 0, None)) == unreadable


def test_before_the_first_look_the_age_is_all_there_is() -> None:
    told = {row.name: row.read(Watch(None, 3.0, 0, "the driver has not answered for 6 s")) for row in WATCH_ROWS}
    assert {name: value for name, value in told.items() if value} == {
        "drumline_sample_age_seconds": 3.0,
        "drumline_driver_stuck": 1.0,
    }
