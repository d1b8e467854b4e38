"""The answers of a job that has predicted, as the file that it wrote."""

from __future__ import annotations

from types import MappingProxyType

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from drumline.errors import Conflict, NotFound
from drumline.jobs.keeper_files import answers_of
from drumline.service.guarded import guarded_router
from drumline.service.headers import add_security_headers
from drumline.service.paths import JobId
from drumline.service.problems import Answers, answer_to, responses
from drumline.service.state import TheService, TheWho

TYPES = MappingProxyType(
    {
        "jsonl": "application/x-ndjson",
        "csv": "text/csv; charset=utf-8",
        "parquet": "application/vnd.apache.parquet",
    }
)
"""Media types by the form of answers."""
BYTES = {"schema": {"type": "string", "format": "binary"}}
CONTENT = {kind.partition(";")[0]: BYTES for kind in TYPES.values()}
FILE: Answers = {
    200: {"description": "A row an answer, in the order of the rows.", "content": CONTENT},
    206: {
        "description": "The part that Range asks for; of several parts each with its own place.",
        "content": {**CONTENT, "multipart/byteranges": BYTES},
        "headers": {"Content-Range": {"description": "Which bytes, of one part.", "schema": {"type": "string"}}},
    },
    **responses(400, 404, 409, 416),
}


class AnswersFile(FileResponse):
    """A file, or a part of it; a Range that asks for what is not there is answered as every other error is."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        refused: list[Response] = []

        async def send_or_keep(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (400, 416):
                told = {"Content-Range": Headers(raw=message["headers"]).get("content-range", "")}
                detail = (
                    "Range cannot be read" if message["status"] == 400 else "the file ends before what Range asks for"
                )
                error = HTTPException(message["status"], detail, {name: value for name, value in told.items() if value})
                refused.append(answer_to(error, Request(scope)))
            elif not refused:
                await send(message)

        await super().__call__(scope, receive, send_or_keep)
        for answer in refused:
            add_security_headers(answer)
            await answer(scope, receive, send)


def router() -> APIRouter:
    """The route of answers."""
    routes = guarded_router("jobs", statuses=(404, 409))

    @routes.get("/jobs/{job_id}/output", response_class=FileResponse, responses=FILE)
    def job_output(job_id: JobId, service: TheService, who: TheWho) -> Response:
        """What a job of kind infer has answered, once it has succeeded."""
        job = service.board.get(job_id, who)
        if job.work.kind != "infer":
            raise NotFound(f"{job_id} answers no rows: it is of kind {job.work.kind}", "see its model_path")
        if job.state != "succeeded":
            fix = "retry it" if job.has_ended else "wait for its end"
            raise Conflict(f"{job_id} is {job.state}: its answers are there once it has succeeded", fix)
        path = answers_of(service.board.files(job), job.work.output)
        if not path.is_file():
            raise NotFound(f"the answers of {job_id} are not there any more", "retry it")
        headers = {"Cache-Control": "private, no-cache"}
        kind = TYPES[job.work.output]
        return AnswersFile(path, headers=headers, media_type=kind, filename=f"{job_id}{path.suffix}")

    return routes
