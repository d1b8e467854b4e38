"""What was used in a time: its sums agree with each other, whoever asks and whatever goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.requests import Who
from drumline.jobs.states import NODE_SILENT
from drumline.service.routes.multigpu import performance as module
from drumline.service.routes.multigpu.performance import DAY_S, PerformanceView, UseView, performance
from drumline.service.state import Service
from tests.service.machines import put_gpus
from tests.service.services import KEYED, add_job, bearer, config, running

Pair = tuple[TestClient, Service]
NOW = 20_000 * DAY_S + 3600.0
"""One o'clock in the night."""
TODAY, YESTERDAY = "2024-10-04", "2024-10-03"
ADMIN = Who("local", "admin")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, scheduling={"cost_per_gpu_hour": 3.6})) as pair:
        yield pair


def ended(
    service: Service, owner: str, span: tuple[float, float], devices: tuple[str, ...] = ("GPU-a",), **values: Any
) -> Job:
    """A job of one attempt, which ran from one moment to another, four fifths of that in training."""
    ran_s = span[1] - span[0]
    known = {"units_per_s": 100.0, "unit": "tokens", "mfu": 0.4, "elapsed_s": 0.8 * ran_s, **values.pop("progress", {})}
    energy = values.pop("energy_j", None)
    job = Job(
        id=values.pop("id", f"job-of-{owner}"), owner=owner, work=Work("finetune", {}), resources=Resources(1),
        created=values.pop("created", span[0] - 10), state="succeeded", devices=devices, attempt=1, node=service.node,
        started=span[0], ended=span[1], used_s=ran_s, progress=known, **values,
    )  # fmt: skip
    service.store.jobs.add(job)
    with service.store.change() as change:
        change.spend(job, *span, energy)
    return job


def look(service: Service, days: int = 30, limit: int = 50) -> PerformanceView:
    return performance(service, ADMIN, days, limit, NOW)


def assert_agrees(found: PerformanceView) -> None:
    """The parts of each division come to the whole."""
    for name in ("run_s", "device_s", "gpu_s", "energy_j", "measured_device_s", "cost"):
        whole = getattr(found.total, name)
        for parts in (found.by_owner.values(), found.by_day.values(), found.by_job):
            assert sum(getattr(part, name) or 0.0 for part in parts) == pytest.approx(whole or 0.0), name
    assert sum(part.jobs for part in found.by_owner.values()) == len(found.by_job) == found.total.jobs


def test_a_job_counts_when_it_runs_whenever_it_was_asked_for(service: Pair) -> None:
    _, opened = service
    new = ended(opened, "ann", (NOW - 100, NOW), id="job-new")
    early = replace(new, id="job-early", created=NOW - 400 * DAY_S, started=NOW - 2 * DAY_S)
    opened.store.jobs.add(early)
    with opened.store.change() as change:
        change.spend(early, NOW - 2 * DAY_S, NOW - 2 * DAY_S + 500)
        change.spend(replace(early, attempt=2), NOW - 200, NOW)
    found = look(opened, days=1)
    assert (found.total.jobs, found.total.device_s) == pytest.approx((2, 300))
    assert [job.job_id for job in found.by_job] == ["job-new", "job-early"]
    assert_agrees(found)
    assert look(opened, days=30).total.device_s == pytest.approx(800)
    assert_agrees(look(opened, days=30))


def test_an_attempt_that_goes_on_counts_up_to_now_on_each_of_its_days(service: Pair) -> None:
    _, opened = service
    ended(opened, "bob", (NOW - 50, NOW), energy_j=40.0)
    add_job(
        opened, "ann", "running", devices=("GPU-a", "GPU-b"), attempt=1, attempt_began=NOW - 2 * 3600,
        started=NOW - 2 * 3600, progress={"units_per_s": 7.0, "unit": "tokens", "elapsed_s": 3600.0, "energy_j": 600.0},
    )  # fmt: skip
    add_job(opened, "ann", "queued")
    found = look(opened)
    assert {day: sums.device_s for day, sums in found.by_day.items()} == {
        YESTERDAY: pytest.approx(7200),
        TODAY: pytest.approx(7250),
    }
    assert found.by_day[YESTERDAY].energy_j == pytest.approx(300)
    assert (found.by_owner["ann"].cost, found.by_owner["ann"].goodput) == pytest.approx((14.4, 0.5))
    assert (found.total.by_state, found.running_units_per_s) == ({"running": 1, "succeeded": 1}, {"tokens": 7.0})
    assert_agrees(found)
    assert look(opened, days=1).total.device_s == pytest.approx(7250)


def test_a_job_of_a_silent_machine_counts_up_to_the_end_of_its_lease_and_does_not_run_now(service: Pair) -> None:
    _, opened = service
    began, progress = NOW - 7200, {"units_per_s": 7.0, "unit": "tokens", "elapsed_s": 60.0}
    for reason in (NODE_SILENT, None):
        job = add_job(
            opened, "ann", "running", devices=("GPU-a",), attempt=1, attempt_began=began, started=began,
            progress=progress, reason=reason,
        )  # fmt: skip
        with opened.store.change() as change:
            change.grant(job, [f"GPU-{reason}"], began, 120.0)
    found = look(opened)
    silent, other = sorted(found.by_job, key=lambda each: each.run_s)
    assert (silent.run_s, silent.goodput) == pytest.approx((120, 0.5))
    assert (other.run_s, other.goodput) == pytest.approx((7200, 60 / 7200))
    assert found.running_units_per_s == {"tokens": 7.0}
    assert_agrees(found)


def test_only_gpus_cost_wherever_they_are(service: Pair) -> None:
    _, opened = service
    ended(opened, "ann", (NOW - 100, NOW), ("cpu:0", "cpu:1"))
    put_gpus(opened)
    assert (look(opened).total.device_s, look(opened).total.cost) == pytest.approx((200, 0.0))
    ended(opened, "bob", (NOW - 100, NOW))
    found = look(opened)
    assert {owner: sums.cost for owner, sums in found.by_owner.items()} == {"ann": 0.0, "bob": pytest.approx(0.1)}
    assert_agrees(found)


def test_energy_says_of_how_much_of_the_time_it_is(service: Pair) -> None:
    _, opened = service
    ended(opened, "ann", (NOW - 100, NOW), ("cpu:0",))
    found = look(opened)
    assert (found.total.energy_j, found.total.measured_device_s) == (None, 0.0)
    assert found.by_job[0].energy_j is None
    ended(opened, "bob", (NOW - 300, NOW), energy_j=6e4)
    found = look(opened)
    assert (found.total.energy_j, found.total.measured_device_s) == pytest.approx((6e4, 300))
    assert_agrees(found)


def test_owners_and_days_have_rates_goodput_mfu_and_waits(service: Pair) -> None:
    _, opened = service
    day = NOW - DAY_S
    ended(opened, "ann", (day, day + 300), created=day - 60, id="job-1")
    ended(opened, "ann", (NOW - 100, NOW), created=NOW - 140, progress={"units_per_s": 50.0, "mfu": 0.1}, id="job-2")
    samples = {"unit": "samples", "units_per_s": 9.0, "mfu": None, "elapsed_s": 50.0}
    ended(opened, "bob", (NOW - 100, NOW), created=NOW - 200, progress=samples, id="job-3")
    found = look(opened)
    ann, today = found.by_owner["ann"], found.by_day[TODAY]
    assert ann.units_per_s == pytest.approx({"tokens": 87.5})
    assert (ann.mfu, ann.goodput, ann.queue_p50_s, ann.queue_p95_s) == pytest.approx((0.325, 0.8, 40, 60))
    assert today.units_per_s == {"samples": 9.0, "tokens": 50.0}
    assert (today.mfu, today.goodput) == pytest.approx((0.1, 0.65))
    assert (today.queue_p50_s, today.queue_mean_s, today.queue_max_s) == (40, 70, 100)
    assert found.by_owner["bob"].mfu is None
    assert_agrees(found)


def test_sums_are_complete_where_lists_are_cut(service: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    _, opened = service
    monkeypatch.setattr(module, "MOST_JOBS", 2)
    for number in range(5):
        ended(opened, "ann", (NOW - 100, NOW), id=f"job-{number}", created=NOW - 500 + number)
    found = look(opened, limit=1)
    assert (found.total.jobs, found.total.device_s, found.total.cost) == pytest.approx((5, 500, 0.5))
    assert ([job.job_id for job in found.by_job], found.looked_at, found.truncated) == (["job-4"], 2, True)
    assert found.total.goodput == pytest.approx(0.8)
    monkeypatch.setattr(module, "MOST_JOBS", 5)
    assert look(opened).truncated is False


def test_without_a_price_costs_are_what_runs_recorded(tmp_path: Path) -> None:
    with running(config(tmp_path)) as (_, opened):
        job = ended(opened, "ann", (NOW - 100, NOW), result={"usage": {"cost": 7.5}})
        found = look(opened)
        assert found.by_owner["ann"].cost == pytest.approx(7.5)
        assert found.by_job[0].job_id == job.id
        assert_agrees(found)


def test_over_http(service: Pair) -> None:
    client, opened = service
    now = time.time()
    ended(opened, "local", (now - 100, now), energy_j=5e4)
    found = client.get("/multigpu/performance/metrics").json()
    assert PerformanceView.model_validate(found).total.device_s == pytest.approx(100)
    assert set(UseView.model_fields) <= set(found["by_job"][0])
    assert client.get("/multigpu/performance/metrics?limit=0").json()["by_job"] == []
    for query in ("days=0", "days=1000", "limit=-1", "days=x"):
        assert client.get(f"/multigpu/performance/metrics?{query}").status_code == 422


def test_others_use_is_in_nobodys_numbers(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        now = time.time()
        ended(opened, "ann", (now - 5, now))
        add_job(opened, "ann", "running", devices=("GPU-b",), attempt=1, attempt_began=now - 10)
        found = client.get("/multigpu/performance/metrics", headers=bearer(opened, "bob")).json()
        assert (found["total"]["jobs"], found["by_owner"], found["by_day"], found["by_job"]) == (0, {}, {}, [])
        own = client.get("/multigpu/performance/metrics", headers=bearer(opened, "ann")).json()
        assert own["total"]["jobs"] == 2
