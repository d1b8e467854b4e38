"""The page as the whole application serves it, and that its simulated service speaks as the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from drumline.service.page.page import POLICY
from drumline.service.routes.multigpu.gpu_views import GpuStats, MachineHealth, StatsView
from drumline.service.routes.multigpu.performance import JobUsageView, PerformanceView, SumsView
from drumline.service.routes.multigpu.resource_views import ResourcesStatusView
from drumline.service.routes.session import SessionView
from drumline.service.views import CheckpointView, ConfigView, JobDetail, JobList, JobView, RecordsPage, View
from tests import simulated_service
from tests.service.services import KEYED, config, running
from tests.simulated_service import Simulated, gpu, job, progress


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_the_page_is_there_without_a_key_and_the_data_is_not(tmp_path: Path, prefix: str) -> None:
    with running(config(tmp_path, prefix=prefix, access=KEYED)) as (client, _):
        page, script = client.get(f"{prefix}/"), client.get(f"{prefix}/ui/app.js")
        session, jobs = client.get(f"{prefix}/session"), client.get(f"{prefix}/jobs")

    assert (page.status_code, script.status_code, session.status_code, jobs.status_code) == (200, 200, 401, 401)
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["x-frame-options"] == "DENY"


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    with running(config(tmp_path)) as (client, _):
        answers = [client.get(path) for path in ("/ui/nothing.js", "/ui/page.py", "/ui/..%2fviews.py")]

    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert [answer.headers["content-type"] for answer in answers] == ["application/problem+json"] * 3


def test_the_page_is_no_part_of_the_api_document(tmp_path: Path) -> None:
    with running(config(tmp_path)) as (client, _):
        paths = client.get("/openapi.json").json()["paths"]

    assert "/jobs" in paths and "/" not in paths and not [path for path in paths if path.startswith("/ui")]


ANSWERS: dict[str, type[View]] = {
    "/session": SessionView,
    "/jobs?state=running": JobList,
    "/jobs/job-1": JobDetail,
    "/jobs/job-1/config": ConfigView,
    "/jobs/job-1/metrics": RecordsPage,
    "/multigpu/stats": StatsView,
    "/multigpu/resources/status": ResourcesStatusView,
    "/multigpu/health": MachineHealth,
    "/multigpu/performance/metrics": PerformanceView,
}


@pytest.mark.parametrize("path", ANSWERS)
def test_the_simulated_service_has_no_field_that_the_real_one_lacks(path: str) -> None:
    state = Simulated(jobs={"job-1": job("job-1", progress=progress(3))}, gpus=[gpu(0)])
    with TestClient(simulated_service.make_app(state)) as client:
        answer = client.get(path).json()

    assert set(answer) <= set(ANSWERS[path].model_fields)


def test_parts_of_simulated_answers_are_what_the_real_service_answers() -> None:
    JobView.model_validate(job("job-1", progress=progress(3)), strict=True)
    GpuStats.model_validate(gpu(0), strict=True)
    assert set(simulated_service.sums([])) <= set(SumsView.model_fields)
    JobUsageView.model_validate(simulated_service.use("job-1"), strict=True)
    assert {"step", "path", "bytes", "written_at"} == set(CheckpointView.model_fields)
