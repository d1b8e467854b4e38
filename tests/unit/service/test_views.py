"""What is told of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import to_json

from drumline.jobs.records import Job, Resources, Work
from drumline.service.views import JobDetail, detail_values, finite, job_values, job_view, timestamp


def job(**values: Any) -> Job:
    work = values.pop("work", Work("finetune", {}, model="/m/gpt2", model_name="gpt2"))
    return Job("job-1", "ann", work, Resources(devices=2, priority=3), 0.0, **values)


def test_its_names_and_links_are_there_below_any_prefix() -> None:
    view = job_view(job(), "/api/v1")
    assert (view.id, view.training_id, view.status, view.state) == ("job-1", "job-1", "queued", "queued")
    assert view.links.cancel == "/api/v1/jobs/job-1/cancel" and view.links.page == "/api/v1/#/jobs/job-1"
    assert view.resources.devices == 2 and view.model_name == "gpt2" and view.created_at == "1970-01-01T00:00:00.000Z"


def test_progress_is_told_in_the_services_words_and_without_nan() -> None:
    found = job_view(job(progress={"step": 3, "total_steps": 9, "loss": float("nan"), "mfu": 0.4, "path": "/x"}), "")
    assert (found.progress.step, found.progress.num_steps, found.progress.loss, found.progress.mfu) == (3, 9, None, 0.4)
    assert "/x" not in found.model_dump_json()


def test_plain_values_are_those_of_the_view() -> None:
    for one in (job(), job(state="failed", progress={"step": 2, "unit": "tokens"}, tags=("a",), devices=("cpu:0",))):
        assert json.loads(job_view(one, "/x").model_dump_json()) == job_values(one, "/x")


def test_what_files_say_wrongly_is_left_out() -> None:
    wrong = {"step": "three", "loss": True, "unit": 5, "mfu": [1]}
    told = job_view(job(progress=wrong, result={"best_loss": "low", "model_path": 3, "gpu_stats": "many"}), "")
    values = json.loads(told.model_dump_json())
    assert set(values["progress"].values()) == {None}
    assert (values["best_loss"], values["model_path"], values["gpu_stats"]) == (None, None, None)


@pytest.mark.parametrize(("state", "success"), [("running", None), ("succeeded", True), ("failed", False)])
def test_success_is_known_at_the_end(state: Any, success: bool | None) -> None:
    assert job_view(job(state=state), "").success is success


def test_results_are_json_whatever_they_hold() -> None:
    result = {"model_path": "/m", "training_time": 1.5, "best_loss": float("inf"), "gpu_stats": {"cost": float("nan")}}
    told = detail_values(job(state="succeeded", result=result), "")
    values = JobDetail.model_validate(told).model_dump(mode="json")
    assert {**json.loads(to_json(told)), "training_history": None} == values
    assert values["best_loss"] is None and values["gpu_stats"] == {"cost": None}
    assert values["model_path"] == "/m"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"kind": "gpt", "path": None}, "gpt"),
        ({"kind": "huggingface", "path": "/m/x"}, "/m/x"),
        (None, None),
        (3, None),
    ],
)
def test_a_run_configs_model_is_named(model: Any, name: str | None) -> None:
    assert job_view(job(work=Work("train", {"model": model})), "").model_name == name


def test_values_without_nan() -> None:
    assert finite({"a": (1.0, float("-inf")), 2: "x"}) == {"a": [1.0, None], "2": "x"}


def test_a_moment() -> None:
    assert timestamp(None) is None and timestamp(1767323045.678) == "2026-01-02T03:04:05.678Z"


@pytest.mark.parametrize(
    ("moment", "told"),
    [
        (1e12, "9999-12-31T23:59:59.000Z"),
        (float("inf"), "9999-12-31T23:59:59.000Z"),
        (-1e300, "0001-01-01T00:00:00.000Z"),
        (float("nan"), None),
    ],
)
def test_a_moment_that_no_calendar_has_is_told_all_the_same(moment: float, told: str | None) -> None:
    assert timestamp(moment) == told
