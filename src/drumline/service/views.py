"""What the service tells of a job, as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from drumline.jobs.records import Job, JobKind, Resources, State

FIRST, LAST = -62135596800.0, 253402300799.0
"""The first and the last second of the years 1 to 9999, since 1970."""
NEXT = "For `after`, to have those that follow, as it is: it also says which file it was."


class View(BaseModel):
    """Base of all answers: frozen, and never NaN or infinite, which JSON does not have."""

    model_config = ConfigDict(frozen=True, protected_namespaces=(), json_schema_serialization_defaults_required=True)


class ResourcesView(View):
    """What a job needs of a machine."""

    devices: int | str = Field(
        description="GPUs, or slots on a machine without any; auto: all that are free.", examples=[2]
    )
    min_devices: int | None = Field(None, description="With max_devices: it may be resized between the two.")
    max_devices: int | None = None
    memory_bytes: int | None = Field(None, description="Free memory that each of its GPUs must have.")
    gpus: list[str] = Field([], description="UUIDs of the only GPUs that it may be given; empty: any.")
    priority: int = 0
    time_limit_s: float | None = None
    retries: int = 0
    preemptible: bool = True


class ProgressView(View):
    """How far a job is, of its last log line; null where nothing is known."""

    step: int | None = None
    num_steps: int | None = None
    epoch: int | None = None
    loss: float | None = Field(None, description="Null too where it is not a number.", examples=[2.31])
    eval_loss: float | None = None
    units_per_s: float | None = None
    unit: str | None = Field(None, examples=["tokens"])
    mfu: float | None = Field(None, description="Share of the GPUs' peak rate, 0 to 1.")
    eta_s: float | None = None
    elapsed_s: float | None = None
    rows_done: int | None = Field(None, description="Of a job that predicts, as are those that follow.")
    rows_total: int | None = Field(None, description="Null while the rows are being read.")
    rows_failed: int | None = Field(None, description="Of those done: rows with an error instead of an answer.")
    rows_per_s: float | None = None
    tokens_per_s: float | None = None


class JobLinks(View):
    """Where more about a job is, and what can be asked of it; paths on this server."""

    self: str = Field(examples=["/jobs/job-20260102-030405-0a1b2c3d4e"])
    cancel: str
    retry: str
    logs: str
    metrics: str
    events: str
    config: str
    checkpoints: str
    page: str
    output: str | None = Field(None, description="Of a job that predicts: its answers, once it has succeeded.")


class JobView(View):
    """One job at one moment."""

    id: str = Field(examples=["job-20260102-030405-0a1b2c3d4e"])
    training_id: str = Field(description="The same as id.")
    name: str = ""
    kind: JobKind
    status: State = Field(description="The same as state.")
    state: State
    reason: str | None = Field(None, description="A code for why it is in this state.")
    message: str = ""
    fix: str = Field("", description="What can be done about it.")
    waits_for: str = Field("", description="Of a queued job: why it does not run yet.")
    position: int | None = Field(
        None,
        description="Of a job that waits for devices of this machine: its place in the queue, 1 for the job that is "
        "looked at first. A smaller one behind it may start earlier. Null for all others.",
        examples=[3],
    )
    owner: str
    user_id: str | None = None
    tags: list[str] = []
    training_type: str | None = None
    model_name: str | None = None
    created_at: str = Field(examples=["2026-01-02T03:04:05.678Z"])
    started_at: str | None = None
    ended_at: str | None = None
    resources: ResourcesView
    devices: list[str] = Field([], description="UUIDs of GPUs, or slots, that it holds; of an ended job, held last.")
    attempt: int = 0
    progress: ProgressView = ProgressView()
    success: bool | None = Field(None, description="Null until it has ended.")
    model_path: str | None = Field(None, description="Folder of the model that it wrote.")
    training_time: float | None = Field(None, description="Seconds.")
    best_loss: float | None = None
    output_path: str | None = Field(None, description="File of the answers of a job that has predicted.")
    rows: int | None = Field(None, description="Of an ended job that predicted: rows that are done.")
    rows_failed: int | None = Field(None, description="Those of them that have an error instead of an answer.")
    gpu_stats: dict[str, Any] | None = Field(None, description="gpus, gpu_seconds, energy_j, cost.")
    retry_of: str | None = None
    version: int
    links: JobLinks


class JobDetail(JobView):
    """One job, with what its folder says: its history once it has ended, and which logs there are."""

    training_history: list[dict[str, Any]] | None = Field(
        None, description="Log lines and evaluations of an ended job; of a long one evenly spread ones."
    )
    summary: dict[str, Any] | None = Field(
        None, description="Of a job that has predicted: counts over all rows, as its summary.json has them."
    )
    log_sources: list[str] | None = Field(
        None,
        description="Logs that it has written, of all attempts and all ranks: for `source` of its logs. Null where its "
        "files are on another machine.",
        examples=[["command", "launcher", "rank_0", "rank_1"]],
    )
    defaults_version: int | None = Field(
        None,
        description="Of the defaults that it took where it said nothing: for `version` of GET /multigpu/config.",
        examples=[3],
    )
    note: str = Field(
        "",
        description="Why training_history and log_sources are not told here.",
        examples=["the files of job-20260102-030405-0a1b2c3d4e lie on gpu-2: ask the service on that machine"],
    )


class JobList(View):
    """Some jobs, the newest first."""

    items: list[JobView]
    next: str | None = Field(None, description="For `cursor`, to have those that follow; null at the end.")
    total: int = Field(description="All that fit the filter.")


class LinesPage(View):
    """Some lines of a log."""

    lines: list[str]
    next: str = Field(description=NEXT, examples=["4096:1234567"])
    done: bool = Field(description="Whether no line will follow.")
    rewritten: bool = Field(False, description="The file has begun anew since `after`: this is from its beginning.")


class RecordsPage(View):
    """Some records of a file of a run."""

    records: list[dict[str, Any]]
    next: str = Field(description=NEXT, examples=["4096:1234567"])
    done: bool = Field(description="Whether no record will follow.")
    rewritten: bool = Field(False, description="The file has begun anew since `after`: this is from its beginning.")


class ConfigView(View):
    """The settings of a job."""

    config: dict[str, Any] | None = Field(description="As its run resolved them; null until it has begun.")
    requested: dict[str, Any] = Field(description="As they were asked for, without texts.")
    plan: dict[str, Any] | None = Field(description="Every derived number with its reason; null until it has begun.")


class CheckpointView(View):
    """One complete checkpoint of a run."""

    step: int
    path: str
    bytes: int
    written_at: str


class CheckpointList(View):
    """The complete checkpoints of a run, the newest first."""

    items: list[CheckpointView]


_RESOURCES = tuple(ResourcesView.model_fields)
_PROGRESS_NUMBERS = tuple(name for name in ProgressView.model_fields if name != "unit")


def job_view(job: Job, base: str, position: int | None = None) -> JobView:
    """What a list tells of a job. base: where the service's paths begin, "" or as "/api/v1"."""
    return JobView.model_validate(job_values(job, base, position))


def detail_values(
    job: Job,
    base: str,
    *,
    position: int | None = None,
    log_sources: list[str] | None = None,
    note: str = "",
) -> dict[str, Any]:
    """A JobDetail but for its history, as plain values that JSON has."""
    summary = finite(job.result.get("summary"))
    return {
        **job_values(job, base, position),
        "summary": summary if isinstance(summary, dict) else None,
        "log_sources": log_sources,
        "defaults_version": job.work.defaults_version,
        "note": note,
    }


def timestamp(time: float | None) -> str | None:
    """Seconds since 1970 as RFC 3339, UTC, to the millisecond; moments beyond its years are their first or last one."""
    if time is None or math.isnan(time):
        return None
    return (
        datetime.fromtimestamp(min(max(time, FIRST), LAST), UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def finite(value: Any) -> Any:
    """A JSON value with null for NaN and the infinite, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def job_links(job_id: str, base: str, kind: JobKind) -> dict[str, str | None]:
    """A JobLinks, as plain values."""
    own = f"{base}/jobs/{job_id}"
    return {
        "self": own,
        "cancel": f"{own}/cancel",
        "retry": f"{own}/retry",
        "logs": f"{own}/logs",
        "metrics": f"{own}/metrics",
        "events": f"{own}/events",
        "config": f"{own}/config",
        "checkpoints": f"{own}/checkpoints",
        "page": f"{base}/#/jobs/{job_id}",
        "output": f"{own}/output" if kind == "infer" else None,
    }


def job_values(job: Job, base: str, position: int | None = None) -> dict[str, Any]:
    """A JobView, as plain values that JSON has: since making a model of each would take most of a list's time."""
    result = job.result
    gpu_stats = finite(result.get("gpu_stats"))
    return {
        "id": job.id,
        "training_id": job.id,
        "name": job.name,
        "kind": job.work.kind,
        "status": job.state,
        "state": job.state,
        "reason": job.reason,
        "message": job.message,
        "fix": job.fix,
        "waits_for": job.waits_for,
        "position": position,
        "owner": job.owner,
        "user_id": job.user_id,
        "tags": list(job.tags),
        "training_type": job.training_type,
        "model_name": model_name(job),
        "created_at": timestamp(job.created),
        "started_at": timestamp(job.started),
        "ended_at": timestamp(job.ended),
        "resources": _resources(job.resources),
        "devices": list(job.devices),
        "attempt": job.attempt,
        "progress": _progress(job.progress),
        "success": job.state == "succeeded" if job.has_ended else None,
        "model_path": _text(result.get("model_path")),
        "training_time": _number(result.get("training_time")),
        "best_loss": _number(result.get("best_loss")),
        "output_path": _text(result.get("output_path")),
        "rows": _number(result.get("rows")),
        "rows_failed": _number(result.get("rows_failed")),
        "gpu_stats": gpu_stats if isinstance(gpu_stats, dict) else None,
        "retry_of": job.retry_of,
        "version": job.version,
        "links": job_links(job.id, base, job.work.kind),
    }


def model_name(job: Job) -> str | None:
    """As the request called the model; of a RunConfig, the path, name or kind of its model."""
    if job.work.model_name is not None:
        return job.work.model_name
    model = job.work.settings.get("model")
    if not isinstance(model, Mapping):
        return None
    found = next((model[key] for key in ("path", "name", "kind") if model.get(key)), None)
    return None if found is None else str(found)


def _resources(resources: Resources) -> dict[str, Any]:
    return {name: getattr(resources, name) for name in _RESOURCES} | {"gpus": list(resources.gpus)}


def _progress(progress: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {name: _number(progress.get(name)) for name in _PROGRESS_NUMBERS}
    known["num_steps"] = known["num_steps"] or _number(progress.get("total_steps"))
    return {**known, "unit": _text(progress.get("unit"))}


def _number(value: Any) -> float | None:
    """What a file says is a number, if it is one."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_one else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
