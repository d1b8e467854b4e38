"""train.profile on a run of one process: when it watches, what it writes, and what it leaves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline.engine.breakdown import Interval
from drumline.engine.profiling import Seen
from drumline.rundir import read_json, read_lines
from drumline.track.report import read_run, summarise
from drumline.track.report_page import render_page
from tests.unit.engine.training import assert_same, events, make_model, rows, state_of, trainer_of


def test_a_window_is_watched_and_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with trainer_of(run, rows(40), train={"profile": {"start": 4, "steps": 3}}) as trainer:
        trainer.fit()
    assert sorted(path.name for path in (run / "profile").iterdir()) == ["profile.json", "trace.json.gz"]
    found = read_json(run / "profile/profile.json")
    assert (found["first"], found["last"], found["device"]) == (5, 7, "cpu")
    assert found["verdict"] in ("compute", "host", "loader")
    [parts] = found["breakdown"]
    whole = parts["compute_s"] + parts["exposed_s"] + parts["loader_s"] + parts["host_s"]
    assert whole == pytest.approx(parts["step_s"]) and parts["compute_s"] > 0
    operators = {each["name"]: each["calls"] for each in found["operators"]}
    assert any(name.startswith("aten::") for name in operators)
    trace = json.loads(gzip.decompress((run / "profile/trace.json.gz").read_bytes()))
    assert sum(event.get("name") == "aten::mse_loss" for event in trace["traceEvents"]) == 0
    assert sum(event.get("name") == "aten::tanh" for event in trace["traceEvents"]) == 3
    [event] = [event for event in read_lines(run / "events.jsonl") if event["event"] == "profile"]
    assert (event["step"], event["message"]) == (7, found["message"])


def test_the_report_shows_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with trainer_of(run, rows(40), train={"profile": {"start": 1, "steps": 2}}) as trainer:
        trainer.fit()
    records = read_run(run)
    page = render_page(records, summarise(records), [])
    assert f"Bound by {records.profile['verdict']}" in page
    assert "Where a step goes" in page and "Longest operators" in page
    assert "Updates 2 to 3: " in page


def test_a_run_that_ends_early_writes_what_was_watched(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with trainer_of(run, rows(12), train={"profile": {"start": 1, "steps": 50}}) as trainer:
        trainer.fit()
    found = read_json(run / "profile/profile.json")
    assert (found["first"], found["last"]) == (2, 3)


def test_a_window_beyond_the_end_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with trainer_of(run, rows(12), train={"profile": {"start": 3, "steps": 5}}) as trainer:
        trainer.fit()
    assert not (run / "profile").exists() and "profile" not in events(run)


def test_an_evaluation_ends_the_window(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options: dict[str, Any] = {"evaluate": {"every": 3}, "eval_data": rows(8), "train": {"profile": {"start": 1}}}
    with trainer_of(run, rows(40), **options) as trainer:
        trainer.fit()
    assert read_json(run / "profile/profile.json")["last"] == 3


def test_a_failure_in_the_window_leaves_no_profiler_running(tmp_path: Path) -> None:
    def broken(trainer: Any, info: Any) -> None:
        if info.step == 3:
            raise ValueError("broken")

    profile = {"profile": {"start": 2, "steps": 5}}
    with (
        pytest.raises(ValueError, match="broken"),
        trainer_of(tmp_path / "failed", rows(40), train=profile, callbacks=[broken]) as trainer,
    ):
        trainer.fit()
    assert not torch.autograd.profiler._is_profiler_enabled
    with trainer_of(tmp_path / "next", rows(40), train=profile) as trainer:
        trainer.fit()
    assert "profile" in events(tmp_path / "next")


def test_a_caller_who_leaves_the_loop_in_the_window_leaves_no_profiler_running(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "left", rows(40), train={"profile": {"start": 2, "steps": 5}}) as trainer:
        steps = trainer.steps()
        while next(steps).step < 4:
            pass
        assert torch.autograd.profiler._is_profiler_enabled
        steps.close()  # type: ignore[attr-defined]
        assert not torch.autograd.profiler._is_profiler_enabled


def test_watching_changes_no_number(tmp_path: Path) -> None:
    weights = []
    for name, profile in (("plain", None), ("watched", {"start": 2, "steps": 3})):
        model = make_model(dropout=0.2)
        with trainer_of(tmp_path / name, rows(40), model, train={"profile": profile}) as trainer:
            trainer.fit()
        weights.append(state_of(model))
    assert_same(*weights)


def event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    """A complete event of a trace, in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, **more}


def test_on_a_gpu_the_kernels_of_the_own_device_count_and_batches_on_their_way_do_not() -> None:
    here, there = {"device": 0, "stream": 7}, {"device": 1, "stream": 7}
    seen = Seen.of(
        [
            event("kernel", "gemm", 0, 3e6, args=here),
            event("kernel", "gemm", 3e6, 5e6, args=there),
            event("kernel", "ncclDevKernel_AllReduce", 2e6, 4e6, args=here, tid=20),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 8e6, 1e6, args=here),
            event("gpu_user_annotation", "nccl:all_reduce", 0, 9e6, args=here),
            event("cpu_op", "aten::mm", 0, 1e6),
        ],
        torch.device("cuda", 0),
    )
    assert [interval.name for interval in seen.kernels] == ["gemm", "ncclDevKernel_AllReduce"]
    found = seen.busy(1)
    assert (found.compute_s, found.communication_s, found.exposed_s) == pytest.approx((3.0, 4.0, 3.0))
    assert seen.operators == [Interval("aten::mm", 1, 0.0, 1.0)]


def test_on_the_cpu_operators_that_read_rows_are_no_compute() -> None:
    seen = Seen.of(
        [
            event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 2e6),
            event("cpu_op", "aten::stack", 1e6, 5e5),
            event("cpu_op", "aten::mm", 3e6, 1e6),
            event("cpu_op", "c10d::allreduce_", 4e6, 1e5),
            event("user_annotation", "gloo:all_reduce", 4e6, 2e6, tid=9),
        ],
        torch.device("cpu"),
    )
    assert {interval.name for interval in seen.ran} == {"aten::mm", "gloo:all_reduce"}
