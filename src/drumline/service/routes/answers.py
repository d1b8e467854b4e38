"""The answers of a job that has predicted, as the file that it wrote."""

from __future__ import annotations

from types import MappingProxyType

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

from drumline.errors import Conflict, NotFound
from drumline.jobs.keeper_files import answers_of
from drumline.service.guarded import guarded_router
from drumline.service.paths import JobId
from drumline.service.problems import Answers, responses
from drumline.service.state import TheService, TheWho

TYPES = MappingProxyType(
    {
        "jsonl": "application/x-ndjson",
        "csv": "text/csv; charset=utf-8",
        "parquet": "application/vnd.apache.parquet",
    }
)
"""Media types by the form of answers."""
FILE: Answers = {
    200: {
        "description": "A row an answer, in the order of the rows; a part of it where Range asks for one.",
        "content": {
            kind.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}} for kind in TYPES.values()
        },
    }
}


def router() -> APIRouter:
    """The route of answers."""
    routes = guarded_router("jobs", statuses=(404, 409))

    @routes.get("/jobs/{job_id}/output", response_class=FileResponse, responses={**FILE, **responses(404, 409)})
    def job_output(job_id: JobId, service: TheService, who: TheWho) -> Response:
        """What a job of kind infer has answered, once it has succeeded."""
        job = service.board.get(job_id, who)
        if job.work.kind != "infer":
            raise NotFound(f"{job_id} answers no rows: it is of kind {job.work.kind}", "see its model_path")
        if job.state != "succeeded":
            fix = "retry it" if job.has_ended else "wait for its end"
            raise Conflict(f"{job_id} is {job.state}: its answers are there once it has succeeded", fix)
        path = answers_of(service.board.folder(job), job.work.output)
        if not path.is_file():
            raise NotFound(f"the answers of {job_id} are not there any more", "retry it")
        headers = {"Cache-Control": "private, no-cache"}
        kind = TYPES[job.work.output]
        return FileResponse(path, headers=headers, media_type=kind, filename=f"{job_id}{path.suffix}")

    return routes
