"""Errors as answers: application/problem+json (RFC 9457), with a stable code and the fix."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from drumline.errors import DrumlineError

logger = logging.getLogger("drumline.service")

Answers = dict[int | str, dict[str, Any]]
"""What a route may answer, by status, as `responses=` takes it."""
PROBLEM_JSON = "application/problem+json"
MOST_FIELDS = 50
"""Values that one answer says something of."""

STATUS_OF = {
    "config": 422,
    "data": 422,
    "hardware": 422,
    "invalid": 422,
    "run_dir_exists": 409,
    "conflict": 409,
    "idempotency_conflict": 409,
    "precondition": 412,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "too_large": 413,
    "quota": 429,
    "rate": 429,
    "busy": 503,
    "store": 503,
    "missing_extra": 503,
}
"""Status by the code of an error; what is not listed is our own mistake, 500."""

CODE_OF = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    415: "media_type",
    416: "range",
    422: "invalid",
}
"""Code by the status of what the framework refuses."""

MEANINGS = {
    400: "The request cannot be read.",
    401: "An API key is needed, or this one is unknown, revoked or past its end.",
    403: "The key does not allow this, or a change by cookie lacks the header X-Drumline.",
    404: "There is no such thing, or it is another owner's.",
    409: "It contradicts what is there already.",
    412: "It was changed meanwhile; see If-Match.",
    408: "The body did not come.",
    413: "The body is larger than the service takes.",
    416: "Range asks for what is beyond the end.",
    422: "A value is not valid; `errors` says where.",
    429: "Too many requests; see Retry-After.",
    503: "The service cannot answer just now.",
}


class FieldProblem(BaseModel):
    """What is wrong with one value of a request."""

    field: str = Field(description="Where it is, as body.training_config.epochs.")
    problem: str


class Problem(BaseModel):
    """Why a request was not done."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Not Found",
                    "status": 404,
                    "code": "not_found",
                    "detail": "there is no job job-20260102-030405-0a1b2c3d4e",
                    "fix": "see GET /jobs for those that there are",
                    "errors": [],
                }
            ]
        },
    )

    type: str = "about:blank"
    title: str
    status: int
    code: str = Field(description="Stable, for programs.")
    detail: str
    fix: str = Field("", description="What can be done about it.")
    errors: list[FieldProblem] = Field([], description="Of a value that is not valid, where it is.")


def problem_schema() -> dict[str, Any]:
    """The JSON schema of Problem, with everything inside: it is used in OpenAPI documents that are not ours too."""
    schema = Problem.model_json_schema(mode="serialization")
    schema["properties"]["errors"]["items"] = schema.pop("$defs")["FieldProblem"]
    return schema


def responses(*statuses: int) -> Answers:
    """For `responses=` of a route: the problems that it may answer with."""
    content = {PROBLEM_JSON: {"schema": problem_schema()}}
    return {status: {"description": MEANINGS[status], "content": content} for status in sorted(statuses)}


def problem_answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that tells a problem."""
    return Response(problem.model_dump_json(), problem.status, headers, media_type=PROBLEM_JSON)


def answer_to(error: Exception, request: Request) -> Response:
    """The answer to what a route raised; what nobody foresaw is logged whole, and told without details."""
    if isinstance(error, DrumlineError):
        status = STATUS_OF.get(error.code, 500)
        if status >= 500:
            logger.error("%s %s: %s", request.method, shown_path(request), error.problem)
        wait_s = getattr(error, "retry_after_s", None)
        headers = {} if wait_s is None else {"Retry-After": str(max(1, round(wait_s)))}
        headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return problem_answer(_problem(status, error.code, error.problem, error.fix), headers)
    if isinstance(error, RequestValidationError | ValidationError):
        if isinstance(error, ValidationError):
            found: Sequence[Any] = error.errors(include_url=False, include_input=False)
        else:
            found = error.errors()
        told = found[:MOST_FIELDS]
        fields = [field_problem(each) for each in told]
        detail = "; ".join(f"{found.field}: {found.problem}" for found in fields[:3])
        status = 400 if any(each["type"] == "json_invalid" for each in told) else 422
        code = "bad_request" if status == 400 else "invalid"
        return problem_answer(_problem(status, code, detail, "see `errors`, and the OpenAPI document", fields))
    if isinstance(error, HTTPException):
        code = CODE_OF.get(error.status_code, "error")
        return problem_answer(_problem(error.status_code, code, str(error.detail)), error.headers)
    logger.error("%s %s failed", request.method, shown_path(request), exc_info=error)
    return problem_answer(_problem(500, "internal", "the service failed at this", "its log says more"))


def shown_path(request: Request) -> str:
    """The path of a request for a log: on one line, whatever was sent."""
    return quote(str(request.scope["path"])[:200], safe="/:@!$&'()*+,;=~", errors="replace")


def field_problem(found: Mapping[str, Any]) -> FieldProblem:
    """One error of pydantic without the value itself, which may be a secret or a text of somebody's."""
    told = found["ctx"]["error"] if found["type"] == "json_invalid" else found["msg"]
    return FieldProblem(field=".".join(str(part)[:100] for part in found["loc"])[:300], problem=str(told)[:500])


def _problem(status: int, code: str, detail: str, fix: str = "", errors: Sequence[FieldProblem] = ()) -> Problem:
    title = HTTPStatus(status).phrase
    return Problem(title=title, status=status, code=code, detail=detail, fix=fix, errors=list(errors))
