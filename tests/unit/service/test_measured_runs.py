"""Settings that measured runs speak for, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drumline.jobs.records import Job, Resources, Work
from drumline.rundir import RunDir
from drumline.service.measured_runs import MeasuredRun, measured, optima

JOB = Job("job-1", "ann", Work("finetune", {}, model="/models/tiny", model_name="tiny"), Resources(2), created=1.0)
PLAN = {"device": "cuda", "gpus": ["a", "b"], "world_size": 2, "kind": "ddp", "global_batch": 16, "micro_batch": 8}


def run_at(path: Path, plan: dict[str, Any], lines: list[dict[str, Any]], events: list[dict[str, Any]]) -> Path:
    run = RunDir.create(path)
    run.plan.write_text(json.dumps(plan))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def line(rate: float, **values: Any) -> dict[str, Any]:
    return {"kind": "train", "units_per_s": rate, "unit": "tokens", **values}


def measured_run(job_id: str, rate: float, micro_batch: int, **values: Any) -> MeasuredRun:
    return MeasuredRun(job_id, "ann", "tiny", "cuda", 2, {"train.micro_batch": micro_batch}, rate, "tokens", **values)


def test_a_run_is_its_median_rate_without_the_warm_up(tmp_path: Path) -> None:
    lines = [
        line(1.0),
        line(100.0, mfu=0.4, memory_peak_bytes=[5, 9]),
        {"kind": "eval"},
        line(300.0, mfu=0.2),
        line(110.0),
    ]
    found = measured(JOB, run_at(tmp_path / "run", {**PLAN, "precision": "bf16"}, lines, []))
    assert found is not None
    assert (found.units_per_s, found.unit, found.num_devices, found.memory_peak_bytes) == (110.0, "tokens", 2, 9)
    assert found.settings == {
        "parallel.kind": "ddp",
        "train.global_batch": 16,
        "train.micro_batch": 8,
        "train.precision": "bf16",
    }
    assert found.shrank_to is None


def test_the_micro_batch_is_the_one_that_memory_sufficed_for(tmp_path: Path) -> None:
    events = [{"event": "out_of_memory", "from": 8, "to": 4}, {"event": "out_of_memory", "from": 4, "to": 2}]
    found = measured(JOB, run_at(tmp_path / "run", PLAN, [line(5.0)], events))
    assert found is not None
    assert (found.settings["train.micro_batch"], found.shrank_to) == (2, 2)
    assert "micro-batches of 2" in optima([found])[0].reason


def test_what_has_measured_nothing_says_nothing(tmp_path: Path) -> None:
    assert measured(JOB, tmp_path / "none") is None
    assert measured(JOB, run_at(tmp_path / "run", PLAN, [{"kind": "eval", "loss": 1.0}], [])) is None
    assert optima([]) == []


def test_the_fastest_is_told_with_what_it_was_compared_with() -> None:
    runs = [measured_run("slow", 100.0, 2), measured_run("fast", 150.0, 8), measured_run("same", 140.0, 8)]
    (best,) = optima(runs)
    assert (best.job_id, best.settings, best.compared) == ("fast", {"train.micro_batch": 8}, ("fast", "same", "slow"))
    assert "50% more" in best.reason
    assert "slow" in best.reason


def test_one_setting_alone_claims_no_gain() -> None:
    (best,) = optima([measured_run("only", 100.0, 2)])
    assert "nothing says that others would be slower" in best.reason


def test_other_models_and_numbers_of_devices_are_not_compared() -> None:
    other = MeasuredRun("big", "ann", "large", "cuda", 2, {}, 5.0, "tokens")
    alone = MeasuredRun("alone", "ann", "tiny", "cuda", 1, {}, 90.0, "tokens")
    found = optima([measured_run("fast", 150.0, 8), other, alone])
    assert [(each.model, each.num_devices, each.job_id) for each in found] == [
        ("large", 2, "big"),
        ("tiny", 1, "alone"),
        ("tiny", 2, "fast"),
    ]
