"""What a job's run writes while it goes on: logs, metrics, events, as pages or as server-sent events; its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Job
from drumline.jobs.requests import Who
from drumline.manifest import MANIFEST, checkpoints_of
from drumline.rundir import RunDir, read_json
from drumline.service.etags import NOT_CHANGED, tagged
from drumline.service.guarded import guarded_router
from drumline.service.job_logs import LOG_SOURCE, log_path
from drumline.service.paths import JobId
from drumline.service.problems import Answers
from drumline.service.state import Service, TheService, TheWho, caller_of
from drumline.service.streams import Source
from drumline.service.tails import PLACE, Place, as_record, as_text, place_of_tail, read_piece
from drumline.service.views import (
    CheckpointList,
    CheckpointView,
    ConfigView,
    LinesPage,
    RecordsPage,
    View,
    finite,
    timestamp,
)

EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
STREAM: Answers = {
    **NOT_CHANGED,
    200: {
        "description": "A page; where Accept names text/event-stream, events: `line` or `record`, `rewritten` where "
        "the file begins anew, and at last `end`.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    },
}
MOST_TAIL = 10_000


class PageQuery(BaseModel):
    """Which part of a file."""

    after: str | None = Field(
        None,
        pattern=PLACE,
        description="`next` of the page before. A bare number is bytes from the file's beginning, whichever file that "
        "is now: where it has begun anew it may be within a line.",
    )
    limit: int = Field(200, ge=1, le=1000, description="Most of an answer that is no stream.")


class LogQuery(PageQuery):
    """Which part of which log."""

    source: str = Field(
        "command",
        pattern=LOG_SOURCE,
        description="command, launcher, or rank_0, rank_1, …; worker_0, … of a prediction; see log_sources of the job",
    )
    tail: int | None = Field(
        None,
        ge=1,
        le=MOST_TAIL,
        description="Where neither `after` nor Last-Event-ID says more: begin with the last lines, so many of them.",
    )


LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", max_length=100, description="Of a stream that broke: where it goes on.")
]


def router() -> APIRouter:
    """The routes of what a run writes."""
    routes = guarded_router("jobs", statuses=(404, 409))
    _add_growing(routes)
    _add_whole(routes)
    return routes


def _add_growing(routes: APIRouter) -> None:
    @routes.get("/jobs/{job_id}/logs", response_model=LinesPage, responses=STREAM)
    async def job_logs(
        job_id: JobId,
        query: Annotated[LogQuery, Query()],
        request: Request,
        service: TheService,
        who: TheWho,
        last: LastEventId = None,
    ) -> Response:
        """A log of a job: of its commands, its launcher or one rank."""
        job, folder = await run_in_threadpool(_find, service, job_id, who)
        source = Source(log_path(folder, query.source), job.id, False, service.has_ended)
        place = _place(request, query, last)
        if place is None and query.tail is not None:
            place = await run_in_threadpool(place_of_tail, source.path, query.tail, is_final=job.has_ended)
        return await _answer(request, service, job, source, query.limit, place)

    @routes.get("/jobs/{job_id}/metrics", response_model=RecordsPage, responses=STREAM)
    async def job_metrics(
        job_id: JobId,
        query: Annotated[PageQuery, Query()],
        request: Request,
        service: TheService,
        who: TheWho,
        last: LastEventId = None,
    ) -> Response:
        """Log lines and evaluations of a job's run, as its metrics.jsonl has them."""
        job, folder = await run_in_threadpool(_find, service, job_id, who)
        source = Source(run_of(folder).metrics, job.id, True, service.has_ended)
        return await _answer(request, service, job, source, query.limit, _place(request, query, last))

    @routes.get("/jobs/{job_id}/events", response_model=RecordsPage, responses=STREAM)
    async def job_events(
        job_id: JobId,
        query: Annotated[PageQuery, Query()],
        request: Request,
        service: TheService,
        who: TheWho,
        last: LastEventId = None,
    ) -> Response:
        """What happened in a job's run: start, warnings, evaluations, saves, end."""
        job, folder = await run_in_threadpool(_find, service, job_id, who)
        source = Source(run_of(folder).events, job.id, True, service.has_ended)
        return await _answer(request, service, job, source, query.limit, _place(request, query, last))


def _add_whole(routes: APIRouter) -> None:
    @routes.get("/jobs/{job_id}/config", response_model=ConfigView, responses=NOT_CHANGED)
    def job_config(job_id: JobId, request: Request, service: TheService, who: TheWho) -> Response:
        """A job's settings as they were asked for, and as its run resolved them."""
        job, folder = _find(service, job_id, who)
        return tagged(request, config_view(job, run_of(folder)))

    @routes.get("/jobs/{job_id}/checkpoints", response_model=CheckpointList, responses=NOT_CHANGED)
    def job_checkpoints(job_id: JobId, request: Request, service: TheService, who: TheWho) -> Response:
        """The complete checkpoints of a job's run, the newest first."""
        _, folder = _find(service, job_id, who)
        return tagged(request, CheckpointList(items=checkpoints(run_of(folder))))


def config_view(job: Job, run: RunDir) -> ConfigView:
    """What is known of a job's settings; files that are not there yet are null."""
    return ConfigView(config=_read(run.config), requested=finite(dict(job.work.settings)), plan=_read(run.plan))


def checkpoints(run: RunDir) -> list[CheckpointView]:
    """Those whose manifest is in place, the newest first."""
    return [
        CheckpointView(step=one.step, path=str(one.path), bytes=one.bytes, written_at=timestamp(one.time) or "")
        for one in checkpoints_of(run)
        if (one.path / MANIFEST).is_file()
    ]


def _find(service: Service, job_id: str, who: Who) -> tuple[Job, Path]:
    job = service.board.get(job_id, who)
    return job, service.board.files(job)


def _wants_stream(request: Request) -> bool:
    return EVENT_STREAM in request.headers.get("accept", "")


def _place(request: Request, query: PageQuery, last: str | None) -> Place | None:
    """Where somebody goes on; None: they begin."""
    said = last if last is not None and _wants_stream(request) else query.after
    return None if said is None else Place.parse(said)


async def _answer(
    request: Request, service: Service, job: Job, source: Source, limit: int, place: Place | None
) -> Response:
    """A stream where Accept names it, else a page."""
    place = place or Place()
    if _wants_stream(request):
        service.streams.check_room()
        caller = caller_of(request)
        events = service.streams.follow(
            source, place, has_ended=job.has_ended, is_valid=lambda: service.access.is_valid(caller)
        )
        return StreamingResponse(events, headers=STREAM_HEADERS, media_type=EVENT_STREAM)
    has_ended = job.has_ended
    piece = await run_in_threadpool(
        read_piece, source.path, place, most=limit, is_final=has_ended, longest=source.longest
    )
    view: View
    told = {"next": str(piece.place), "done": has_ended and piece.at_end, "rewritten": piece.is_rewritten}
    if source.is_records:
        records = [record for line, _ in piece.lines if (record := as_record(line)) is not None]
        view = RecordsPage(records=records, **told)
    else:
        view = LinesPage(lines=[as_text(line) for line, _ in piece.lines], **told)
    return tagged(request, view)


def _read(path: Path) -> dict[str, Any] | None:
    """A document that a run writes whole; None where it is not there."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else read_json(path)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return finite(found) if isinstance(found, dict) else None
