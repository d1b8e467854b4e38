"""How well the machine is used: rates, goodput, waiting, energy and cost, by job, owner and day."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from drumline.jobs.requests import Who
from drumline.jobs.store import JobFilter
from drumline.service.routes.multigpu.gpu_state import may_see
from drumline.service.state import Service, TheService, TheWho
from drumline.service.usage import JobUsage, Sums, grouped, summed, usage_of
from drumline.service.views import View, finite

DAY_S = 86_400.0
PAGE, MOST_JOBS = 200, 2000
"""Newest jobs that one answer looks at; accounts by owner and day are of all."""

Days = Annotated[int, Query(ge=1, le=366, description="How far back.")]
Limit = Annotated[int, Query(ge=0, le=500, description="Newest jobs that are listed one by one.")]


class SumsView(View):
    """Several jobs together; null where nobody has measured it."""

    jobs: int
    by_state: dict[str, int]
    run_s: float = Field(description="Seconds that their processes ran.")
    device_s: float = Field(description="Seconds times devices.")
    gpu_s: float
    energy_j: float | None = Field(None, description="Of those that were measured.")
    cost: float
    queue_mean_s: float | None = Field(None, description="From asking to the first start.")
    queue_p50_s: float | None = None
    queue_p95_s: float | None = None
    queue_max_s: float | None = None
    goodput: float | None = Field(
        None, description="Share of the time that their processes ran, 0 to 1, that went into training that was kept."
    )
    mfu: float | None = Field(None, description="Share of the GPUs' peak rate, 0 to 1.")
    units_per_s: dict[str, float] = Field(
        {}, description="By unit, the mean over jobs.", examples=[{"tokens": 51000.0}]
    )


class JobUsageView(View):
    """One job; null where nobody has measured it."""

    job_id: str = Field(examples=["job-20260102-030405-0a1b2c3d4e"])
    owner: str
    name: str = ""
    state: str
    day: str = Field(description="UTC, of its end, or today while it goes on.", examples=["2026-01-02"])
    queue_s: float
    run_s: float
    trained_s: float | None = None
    device_s: float
    gpu_s: float
    energy_j: float | None = None
    cost: float
    units_per_s: float | None = None
    unit: str | None = None
    mfu: float | None = None
    goodput: float | None = None


class AccountView(View):
    """What one owner or one day took of the devices, over all attempts that have ended."""

    jobs: int = Field(examples=[3])
    device_s: float = Field(description="Seconds times devices.", examples=[7200.0])
    energy_j: float | None = None
    cost: float


class PerformanceView(View):
    """How well the machine was used, over the jobs that you may see."""

    since: str = Field(examples=["2025-12-03"])
    days: int
    currency: str = Field(examples=["EUR"])
    total: SumsView
    by_owner: dict[str, SumsView]
    by_job: list[JobUsageView] = Field(description="The newest.")
    accounts_by_owner: dict[str, AccountView] = Field(description="Whole days, by the store's accounts.")
    accounts_by_day: dict[str, AccountView]
    running_units_per_s: dict[str, float] = Field(description="Of all jobs that run now together, by unit.")
    truncated: bool = Field(description="Whether there are more jobs than were looked at.")


def add(routes: APIRouter) -> None:
    """Add this path."""

    @routes.get("/performance/metrics", operation_id="performance_metrics")
    def metrics(service: TheService, who: TheWho, days: Days = 30, limit: Limit = 50) -> PerformanceView:
        """Rates, MFU, goodput, queue times, energy and cost: of one's own jobs, or of an admin all."""
        return performance(service, who, days, limit, time.time())


def performance(service: Service, who: Who, days: int, limit: int, now: float) -> PerformanceView:
    """All of it, over the last days (UTC days, so that accounts are whole). now: seconds since 1970."""
    policy = service.config.scheduling
    since = (now // DAY_S - (days - 1)) * DAY_S
    usages, truncated = _usages(service, who, since, now)
    owner = None if may_see(who, "") else who.owner
    price = policy.cost_per_gpu_hour if service.devices().has_gpus else 0.0

    def accounts(by: Literal["owner", "day"]) -> dict[str, AccountView]:
        return {
            each.group: AccountView(
                jobs=each.num_jobs,
                device_s=each.device_s,
                energy_j=finite(each.energy_j),
                cost=each.device_s / 3600 * price,
            )
            for each in service.store.jobs.usage(by, since, now, owner)
        }

    running: dict[str, float] = {}
    for each in usages:
        if each.state == "running" and each.unit is not None and each.units_per_s is not None:
            running[each.unit] = running.get(each.unit, 0.0) + each.units_per_s
    return PerformanceView(
        since=time.strftime("%Y-%m-%d", time.gmtime(since)),
        days=days,
        currency=policy.currency,
        total=_sums(summed(usages)),
        by_owner={name: _sums(sums) for name, sums in grouped(usages, lambda each: each.owner).items()},
        by_job=[_one(each) for each in usages[:limit]],
        accounts_by_owner=accounts("owner"),
        accounts_by_day=accounts("day"),
        running_units_per_s=running,
        truncated=truncated,
    )


def _usages(service: Service, who: Who, since: float, now: float) -> tuple[list[JobUsage], bool]:
    """The newest jobs that were asked for since then, and whether there are more."""
    found: list[JobUsage] = []
    cursor = None
    price = service.config.scheduling.cost_per_gpu_hour
    while len(found) < MOST_JOBS:
        page = service.board.find(JobFilter(created_after=since), who, cursor=cursor, limit=PAGE)
        found += [usage_of(job, now, price) for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found, False
    return found, True


def _sums(sums: Sums) -> SumsView:
    return SumsView(**{**asdict(sums), "by_state": dict(sums.by_state), "units_per_s": dict(sums.units_per_s)})


def _one(usage: JobUsage) -> JobUsageView:
    return JobUsageView(**asdict(usage), goodput=usage.goodput)
