"""What is kept of a run while it goes on and once it has ended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.results import DEVICE_SECONDS, no_result, progress_of, result_of
from drumline.monitor.runs import RunFacts
from drumline.monitor.spending import Spending, spending_file
from drumline.rundir import RunDir, write_json

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


def job_of(folder: Path, devices: tuple[str, ...] = (UUID, "GPU-2")) -> Job:
    run = RunDir.create(folder / "run")
    write_json(run.plan, {"gpus": list(devices), "world_size": len(devices), "steps": 20})
    lines = [
        {"kind": "train", "step": 10, "loss": 3.0, "elapsed_s": 20.0, "mfu": 0.3, "time": 1.0},
        {"kind": "train", "step": 20, "loss": 2.5, "elapsed_s": 40.0, "mfu": 0.5, "time": 2.0},
        {"kind": "eval", "step": 20, "loss": 2.0, "elapsed_s": 45.0, "time": 3.0},
    ]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(run.exit, {"exit_status": 0, "reason": "done", "message": "", "steps": 20})
    write_json(spending_file(run, "here"), vars(Spending(energy_j=5000.0, gpu_s=100.0)))
    resources = Resources(devices=2)
    job = Job("a", "ann", Work("train", {}), resources, 0.0, "succeeded", devices=devices, attempt=2)
    return Job(**{**vars(job), "used_s": 60.0, "queued_since": 5.0, "started": 9.0})


def test_a_job_that_succeeded(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    result = result_of(job_of(tmp_path), tmp_path, SchedulingConfig(cost_per_gpu_hour=3.0))
    assert result["success"] is True
    assert result["model_path"] == str(tmp_path / "model")
    assert (result["best_loss"], result["training_time"], result["steps"]) == (2.0, 45.0, 20)
    assert result["gpu_stats"]["gpus"] == [UUID, "GPU-2"]
    assert result["gpu_stats"]["cost"] == result["usage"]["cost"]
    assert result["usage"] == {
        "seconds": 60.0,
        "device_seconds": 120.0,
        "gpu_seconds": 100.0,
        "energy_j": 5000.0,
        "cost": pytest.approx(0.1),
        "useful_seconds": 45.0,
        "goodput": 0.75,
        "mfu": 0.4,
        "queue_seconds": 4.0,
        "attempts": 2,
    }
    json.dumps(result, allow_nan=False)


def test_without_a_price_the_cost_is_what_the_run_recorded(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    spending = Spending(energy_j=5000.0, gpu_s=100.0, cost=7.5)
    write_json(spending_file(RunDir(tmp_path / "run"), "here"), vars(spending))
    for price, cost in ((0.0, 7.5), (3.0, pytest.approx(0.1))):
        result = result_of(job, tmp_path, SchedulingConfig(cost_per_gpu_hour=price))
        assert result["gpu_stats"]["cost"] == result["usage"]["cost"] == cost


def test_attempts_on_other_numbers_of_devices_count_as_they_were(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path), progress={DEVICE_SECONDS: 300.0})  # 60 s, the first of them on more GPUs
    result = result_of(job, tmp_path, SchedulingConfig(cost_per_gpu_hour=3.0))
    assert result["usage"]["device_seconds"] == 300.0
    assert result["gpu_stats"]["cost"] == pytest.approx(0.25)


def test_slots_cost_nothing_and_nobody_measures_their_energy(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("cpu:0",))
    write_json(spending_file(RunDir(tmp_path / "run"), "here"), vars(Spending()))
    result = result_of(job, tmp_path, SchedulingConfig(cost_per_gpu_hour=3.0))
    assert (result["usage"]["cost"], result["usage"]["energy_j"], result["gpu_stats"]["energy_j"]) == (0.0, None, None)


def test_a_job_that_never_came_to_a_run(tmp_path: Path) -> None:
    job = Job("a", "ann", Work("train", {}), Resources(), 0.0, "failed")
    result = result_of(job, tmp_path, SchedulingConfig())
    assert (result["success"], result["model_path"], result["best_loss"]) == (False, None, None)
    assert (result["usage"]["goodput"], result["usage"]["queue_seconds"]) == (None, None)
    assert no_result(job, OSError("gone"))["problem"] == "gone"


def test_progress_is_what_is_known_and_what_json_can_say() -> None:
    facts = RunFacts(Path("run"), "run", "running", step=5, total_steps=10, loss=float("nan"), epoch=0, eta_s=3.5)
    found = progress_of(facts)
    assert (found["step"], found["num_steps"], found["epoch"], found["eta_s"]) == (5, 10, 0, 3.5)
    assert "loss" not in found
    assert "mfu" not in found
