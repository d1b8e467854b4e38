"""Jobs: list, ask for, see, cancel, do again, remove their data."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict, Field

from drumline.jobs.records import JobKind, State
from drumline.jobs.requests import JobRequest
from drumline.jobs.store import JobFilter
from drumline.service.details import detail_json
from drumline.service.etags import NOT_CHANGED, tagged
from drumline.service.guarded import StoreRoute, guarded_router
from drumline.service.idempotency import IdempotencyKey, Repeated, idempotency_of
from drumline.service.paths import JobId
from drumline.service.problems import Answers, responses
from drumline.service.state import TheBase, TheService, TheWho
from drumline.service.times import parse_time
from drumline.service.views import JobDetail, JobList, JobView, job_view

Label = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
TAKEN: Answers = {
    202: {
        "description": "It is queued; or, with an Idempotency-Key that was used before, the job of then.",
        "headers": {"Location": {"description": "Where it is seen.", "schema": {"type": "string"}}},
    }
}
EXAMPLES: dict[str, Example] = {
    "finetune": {
        "summary": "Fine-tune a model on texts.",
        "value": {
            "kind": "finetune",
            "model_name": "gpt2",
            "texts": ["sample text 1", "sample text 2"],
            "settings": {"epochs": 3, "learning_rate": 5e-5},
            "resources": {"devices": 1},
            "tags": ["ads"],
        },
    },
    "train": {
        "summary": "A whole RunConfig.",
        "value": {"kind": "train", "config": {"train": {"epochs": 1}}, "resources": {"devices": "auto", "priority": 5}},
    },
    "infer": {
        "summary": "Have a model answer rows, one answer a row, in order.",
        "value": {
            "kind": "infer",
            "model_name": "gpt2",
            "texts": [{"id": "a", "text": "first text"}, {"id": "b", "text": "second text"}],
            "columns": {"id": "id"},
            "task": {
                "kind": "choose",
                "prompt": {"prompt": "Is this about cats? {text} Answer:"},
                "labels": ["yes", "no"],
            },
            "output": "jsonl",
        },
    },
}


class JobQuery(BaseModel):
    """Which jobs are listed: those to which all that is given applies."""

    model_config = ConfigDict(extra="forbid")

    state: list[State] = Field(default=[], description="One of these.", max_length=9)
    owner: Label | None = Field(None, description="Of an admin's list; others see their own jobs.")
    tag: Label | None = None
    kind: JobKind | None = None
    user_id: Label | None = None
    training_type: Label | None = None
    created_after: Label | None = Field(None, description="RFC 3339, as 2026-01-02T03:04:05Z.")
    created_before: Label | None = Field(None, description="RFC 3339.")
    q: Label | None = Field(None, description="Part of its id, name, model's name, user_id or a tag.")
    limit: int = Field(50, ge=1, le=200)
    cursor: Annotated[str, Field(max_length=500, pattern=r"^[\x20-\x7e]*$")] | None = Field(
        None, description="`next` of the page before."
    )


class RetryRequest(BaseModel):
    """How an ended job's work is done again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"from_checkpoint": True}]})

    from_checkpoint: bool = Field(False, description="Go on from its newest checkpoint rather than from the beginning.")


def router() -> APIRouter:
    """The routes of jobs."""
    routes = guarded_router("jobs", kind=StoreRoute)
    _add_reading(routes)
    _add_changes(routes)
    return routes


def _add_reading(routes: APIRouter) -> None:
    @routes.get(
        "/jobs", name="drumline_list_jobs", operation_id="list_jobs", response_model=JobList, responses=NOT_CHANGED
    )
    def list_jobs(
        request: Request, query: Annotated[JobQuery, Query()], service: TheService, who: TheWho, base: TheBase
    ) -> Response:
        """Jobs, the newest first: one's own, or of an admin everybody's."""
        page = service.board.find(filter_of(query), who, cursor=query.cursor, limit=query.limit)
        places = service.board.queue.places(page.items)
        return tagged(request, service.job_lists.json(page, places, base))

    @routes.get("/jobs/{job_id}", response_model=JobDetail, responses={**NOT_CHANGED, **responses(404)})
    def get_job(job_id: JobId, request: Request, service: TheService, who: TheWho, base: TheBase) -> Response:
        """One job: how far it is, and what became of it."""
        return tagged(request, detail_json(service.board, service.board.get(job_id, who), base))


def _add_changes(routes: APIRouter) -> None:
    @routes.post("/jobs", status_code=202, responses={**TAKEN, **responses(404, 409)})
    def submit_job(
        body: Annotated[JobRequest, Body(openapi_examples=EXAMPLES)],
        response: Response,
        service: TheService,
        who: TheWho,
        base: TheBase,
        key: IdempotencyKey = None,
    ) -> JobView:
        """Ask for a job: a whole RunConfig (kind train), a model and data (finetune), or a model and rows (infer)."""
        job = service.board.submit(body, who, idempotency_of(key, who, "jobs", body))
        view = job_view(job, base, service.board.queue.places([job]).get(job.id))
        response.headers["Location"] = view.links.self
        return view

    @routes.post("/jobs/{job_id}/cancel", status_code=202, responses=responses(404))
    def cancel_job(job_id: JobId, service: TheService, who: TheWho, base: TheBase, _key: Repeated = None) -> JobView:
        """Let a job save and stop. One that has ended stays as it is."""
        return job_view(service.board.cancel(job_id, who), base)

    @routes.post("/jobs/{job_id}/retry", status_code=202, responses={**TAKEN, **responses(404, 409)})
    def retry_job(
        job_id: JobId,
        response: Response,
        service: TheService,
        who: TheWho,
        base: TheBase,
        body: RetryRequest | None = None,
        key: IdempotencyKey = None,
    ) -> JobView:
        """Do an ended job's work again, as a new job."""
        wanted = RetryRequest() if body is None else body
        once = idempotency_of(key, who, f"retry {job_id}", wanted)
        job = service.board.retry(job_id, who, from_checkpoint=wanted.from_checkpoint, idempotency=once)
        view = job_view(job, base, service.board.queue.places([job]).get(job.id))
        response.headers["Location"] = view.links.self
        return view

    @routes.delete("/jobs/{job_id}/data", status_code=204, responses=responses(404, 409))
    def delete_job_data(job_id: JobId, service: TheService, who: TheWho) -> None:
        """Remove the texts that came with a job, and what was prepared of them. The job must have ended."""
        service.board.delete_data(job_id, who)


def filter_of(query: JobQuery) -> JobFilter:
    """What is asked of the store."""
    return JobFilter(
        owner=query.owner,
        states=frozenset(query.state),
        kind=query.kind,
        tag=query.tag,
        user_id=query.user_id,
        training_type=query.training_type,
        created_after=parse_time("created_after", query.created_after),
        created_before=parse_time("created_before", query.created_before),
        text=query.q,
    )
