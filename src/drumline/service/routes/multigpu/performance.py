"""How well the machine is used: rates, goodput, waiting, energy and cost, by job, owner and day."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from drumline.jobs.records import Job
from drumline.jobs.requests import Who
from drumline.jobs.silence import lease_ends, seen_until
from drumline.jobs.states import NODE_SILENT
from drumline.jobs.store import Use
from drumline.service.routes.multigpu.gpu_state import may_see
from drumline.service.state import Service, TheService, TheWho
from drumline.service.usage import JobRates, grouped, rates_of, summed, with_running
from drumline.service.views import View, finite

DAY_S = 86_400.0
MOST_JOBS = 2000
"""Newest jobs whose rates are looked at; what was used is summed over all."""

Days = Annotated[int, Query(ge=1, le=366, description="How far back, in days (UTC), today included.")]
Limit = Annotated[int, Query(ge=0, le=500, description="Newest jobs that are listed one by one.")]


class UseView(View):
    """What was used, and what came of it; null where nobody has measured it."""

    run_s: float = Field(description="Seconds that processes ran.", examples=[3600.0])
    device_s: float = Field(description="Seconds times devices.", examples=[7200.0])
    gpu_s: float = Field(description="Seconds times GPUs; slots of a machine without any are not in it.")
    energy_j: float | None = Field(None, description="Of those devices that were measured.", examples=[2.3e6])
    measured_device_s: float = Field(description="Those of device_s that energy_j is of.", examples=[7200.0])
    cost: float = Field(description="gpu_s at the service's price; without a price, what runs have recorded.")
    goodput: float | None = Field(
        None, description="Share of the time of devices, 0 to 1, that went into training that was kept."
    )
    mfu: float | None = Field(None, description="Share of the GPUs' peak rate, 0 to 1, weighted by their time.")


class SumsView(UseView):
    """Several jobs together."""

    jobs: int = Field(description="That have used a device in this time.", examples=[3])
    by_state: dict[str, int] = Field(examples=[{"succeeded": 2, "running": 1}])
    queue_mean_s: float | None = Field(
        None, description="From asking to the first start, of jobs that first started in this time."
    )
    queue_p50_s: float | None = None
    queue_p95_s: float | None = None
    queue_max_s: float | None = None
    units_per_s: dict[str, float] = Field(
        {}, description="By unit, the mean over jobs, weighted by the time that they ran.", examples=[{"tokens": 5e4}]
    )


class JobUsageView(UseView):
    """What one job has used in this time; its rates are of all of it."""

    job_id: str = Field(examples=["job-20260102-030405-0a1b2c3d4e"])
    owner: str
    name: str = ""
    state: str
    day: str = Field(description="UTC, the last on which it used a device.", examples=["2026-01-02"])
    queue_s: float | None = Field(None, description="From asking to its first start.")
    units_per_s: float | None = None
    unit: str | None = None


class PerformanceView(View):
    """How well the machines were used, by the jobs that you may see.

    All sums follow one rule: what was used on these days counts, whenever its job was asked for; attempts that go on
    count up to now, and on a machine that does not answer up to the end of their leases.
    """

    since: str = Field(examples=["2025-12-03"])
    days: int
    currency: str = Field(examples=["EUR"])
    total: SumsView
    by_owner: dict[str, SumsView]
    by_day: dict[str, SumsView] = Field(description="UTC, the oldest first; days without use are not in it.")
    by_job: list[JobUsageView] = Field(description="The newest; total.jobs says how many there are.")
    running_units_per_s: dict[str, float] = Field(
        description="Of all jobs that run now together, by unit; without those of machines that do not answer."
    )
    looked_at: int = Field(description="Newest jobs that rates, MFU and goodput are of.", examples=[3])
    truncated: bool = Field(
        description="Whether these are not all jobs; without a price of the service, costs are of these too."
    )


def add(routes: APIRouter) -> None:
    """Add this path."""

    @routes.get("/performance/metrics", operation_id="performance_metrics")
    def metrics(service: TheService, who: TheWho, days: Days = 30, limit: Limit = 50) -> PerformanceView:
        """Rates, MFU, goodput, queue times, energy and cost: of one's own jobs, or of an admin all."""
        return performance(service, who, days, limit, time.time())


def performance(service: Service, who: Who, days: int, limit: int, now: float) -> PerformanceView:
    """All of it, over the last days (UTC). now: seconds since 1970."""
    policy = service.config.scheduling
    since = (now // DAY_S - (days - 1)) * DAY_S
    owner = None if may_see(who, "") else who.owner
    # In this order: an attempt that ends between the two is in the accounts.
    running = service.store.jobs.running(owner)
    seen = _seen(service, running, now)
    uses = with_running(service.store.jobs.usage(since, now, owner), running, since, now, seen)
    of_job = grouped(sorted(uses, key=lambda use: (use.created, use.job_id), reverse=True), lambda use: use.job_id)
    newest = list(of_job)[:MOST_JOBS]
    jobs = {job.id: job for job in running} | service.store.jobs.several(newest)
    rates = {job_id: rates_of(job, seen.get(job_id, now)) for job_id, job in jobs.items()}

    def sums(of: Sequence[Use]) -> SumsView:
        return SumsView(**finite(asdict(summed(of, rates, policy.cost_per_gpu_hour))))

    return PerformanceView(
        since=time.strftime("%Y-%m-%d", time.gmtime(since)),
        days=days,
        currency=policy.currency,
        total=sums(uses),
        by_owner={name: sums(of) for name, of in sorted(grouped(uses, lambda use: use.owner).items())},
        by_day={day: sums(of) for day, of in sorted(grouped(uses, lambda use: use.day).items())},
        by_job=[
            _one(jobs[each], of_job[each], sums(of_job[each]), rates[each]) for each in newest[:limit] if each in jobs
        ],
        running_units_per_s=_together([job for job in running if job.id not in seen], rates),
        looked_at=len(newest),
        truncated=len(of_job) > len(newest),
    )


def _seen(service: Service, running: Sequence[Job], now: float) -> dict[str, float]:
    """Until when the jobs of silent machines have been looked after, by id: nobody knows whether they go on."""
    silent = [job for job in running if job.reason == NODE_SILENT]
    ends = lease_ends(service.store.leases.all()) if silent else {}
    return {job.id: seen_until(job, ends, now) for job in silent}


def _together(running: Sequence[Job], rates: dict[str, JobRates]) -> dict[str, float]:
    found: dict[str, float] = {}
    for job in running:
        rate = rates[job.id]
        if job.state == "running" and rate.unit is not None and rate.units_per_s is not None:
            found[rate.unit] = found.get(rate.unit, 0.0) + rate.units_per_s
    return found


def _one(job: Job, uses: Sequence[Use], sums: SumsView, rates: JobRates) -> JobUsageView:
    used = {name: getattr(sums, name) for name in UseView.model_fields}
    return JobUsageView(
        **used,
        job_id=job.id,
        owner=job.owner,
        name=job.name,
        state=job.state,
        day=max(use.day for use in uses),
        queue_s=None if job.started is None else max(0.0, job.started - job.created),
        units_per_s=rates.units_per_s,
        unit=rates.unit,
    )
