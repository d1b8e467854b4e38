"""What was trained: page by page, and several trainings beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from drumline.jobs.records import Job, JobKind, State
from drumline.jobs.store import JobFilter
from drumline.rundir import RunDir
from drumline.service.etags import tagged
from drumline.service.problems import responses
from drumline.service.routes.jobs import JobQuery, filter_of
from drumline.service.state import Service, TheBase, TheService, TheWho
from drumline.service.usage import rates_of
from drumline.service.views import JobView, View, finite, job_view

MOST_COMPARED = 20
JobName = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
UNLIKE = frozenset({"run_dir", "name", "data.cache_dir", "hardware.gpus"})
"""Settings that differ between any two jobs, and say nothing of what they learn."""


KNOWN: dict[int | str, dict[str, Any]] = {304: {"description": "It is as If-None-Match says."}, **responses(404)}


class HistoryQuery(JobQuery):
    """Which trainings are listed, and which are compared."""

    state: list[State] = Field(
        default=[],
        max_length=9,
        description="One of these; left out: all that have begun or ended, and none that waits for its first devices.",
    )
    kind: JobKind | None = Field(None, description="Left out: all that learn, which leaves predictions (infer) out.")
    compare: list[JobName] = Field(
        default=[], max_length=MOST_COMPARED, description="Ids of trainings that are put beside each other."
    )


class ComparedView(View):
    """One of several trainings that are put beside each other; null where nothing is known."""

    id: str = Field(examples=["job-20260102-030405-0a1b2c3d4e"])
    name: str = ""
    status: str = Field(examples=["succeeded"])
    best_loss: float | None = None
    final_loss: float | None = None
    training_time: float | None = Field(None, description="Seconds.")
    steps: int | None = None
    num_devices: int
    units_per_s: float | None = None
    unit: str | None = None
    mfu: float | None = None
    goodput: float | None = None
    gpu_seconds: float | None = None
    energy_j: float | None = None
    cost: float | None = None
    is_best: bool = Field(False, description="Whether its best loss is the lowest of them.")


class ComparisonView(View):
    """Several trainings beside each other."""

    trainings: list[ComparedView]
    differences: dict[str, dict[str, Any]] = Field(
        description="Settings that are not the same in all of them: by dotted name, the value of each by id.",
        examples=[{"train.lr": {"job-1": 5e-5, "job-2": 1e-4}}],
    )


class HistoryView(View):
    """Trainings that have begun or ended, the newest first."""

    items: list[JobView] = Field(description="With best_loss, training_time and gpu_stats once they have ended.")
    next: str | None = Field(None, description="For `cursor`, to have those that follow; null at the end.")
    total: int = Field(description="All that fit the filter.", examples=[42])
    comparison: ComparisonView | None = Field(None, description="Of those that `compare` names.")


def add(routes: APIRouter) -> None:
    """Add this path."""

    @routes.get(
        "/training/history",
        operation_id="training_history",
        response_model=HistoryView,
        responses=KNOWN,
    )
    def history(
        request: Request, query: Annotated[HistoryQuery, Query()], service: TheService, who: TheWho, base: TheBase
    ) -> Response:
        """What was trained, and what came of it; `compare` puts some of it beside each other."""
        page = service.board.find(history_filter(query), who, cursor=query.cursor, limit=query.limit)
        compared = None
        if query.compare:
            jobs = [service.board.get(job_id, who) for job_id in dict.fromkeys(query.compare)]
            compared = comparison(service, jobs)
        items = [job_view(job, base) for job in page.items]
        return tagged(request, HistoryView(items=items, next=page.next_cursor, total=page.total, comparison=compared))


def history_filter(query: HistoryQuery) -> JobFilter:
    """What is asked of the store."""
    found = filter_of(query)
    if not query.state:
        found = replace(found, has_begun=True)
    return found if query.kind is not None else replace(found, not_kind="infer")


def comparison(service: Service, jobs: Sequence[Job]) -> ComparisonView:
    """These jobs beside each other."""
    settings = {job.id: flat(settings_of(service, job)) for job in jobs}
    losses = [loss for job in jobs if (loss := finite(job.result.get("best_loss"))) is not None]
    best = min(losses, default=None)
    return ComparisonView(trainings=[_compared(job, best) for job in jobs], differences=finite(differences(settings)))


def settings_of(service: Service, job: Job) -> Mapping[str, Any]:
    """The settings that a job's run resolved; as they were asked for where it has not begun."""
    try:
        found = yaml.safe_load(RunDir(service.board.folder(job) / "run").config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        found = None
    return found if isinstance(found, Mapping) else job.work.settings


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def differences(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By name, the values of each where they are not all the same; what one does not say is null."""
    names = sorted({name for values in settings.values() for name in values} - UNLIKE)
    found = {name: {job_id: values.get(name) for job_id, values in settings.items()} for name in names}
    return {
        name: values for name, values in found.items() if any(v != next(iter(values.values())) for v in values.values())
    }


def _compared(job: Job, best: float | None) -> ComparedView:
    rates = rates_of(job, job.ended or job.created)
    result, progress = finite(job.result), finite(job.progress)
    stats = result.get("gpu_stats") or {}
    own = result.get("best_loss")
    return ComparedView(
        id=job.id,
        name=job.name,
        status=job.state,
        best_loss=own,
        final_loss=progress.get("loss"),
        training_time=result.get("training_time"),
        steps=progress.get("step"),
        num_devices=len(job.devices),
        units_per_s=rates.units_per_s,
        unit=rates.unit,
        mfu=rates.mfu,
        goodput=rates.goodput,
        gpu_seconds=stats.get("gpu_seconds"),
        energy_j=stats.get("energy_j"),
        cost=stats.get("cost"),
        is_best=own is not None and own == best,
    )
