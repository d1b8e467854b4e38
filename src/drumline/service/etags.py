"""Answers with an ETag: who has it already is told so, in a line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from drumline.errors import DrumlineError
from drumline.service.problems import Answers

NOT_CHANGED: Answers = {304: {"description": "It is as If-None-Match says."}}


class PreconditionFailed(DrumlineError):
    """What a change was meant for has changed meanwhile."""

    code = "precondition"


def tagged(
    request: Request, view: BaseModel | Mapping[str, Any] | bytes, headers: dict[str, str] | None = None
) -> Response:
    """A view, its plain values or its JSON, with the ETag of its bytes; 304 without them where If-None-Match has it."""
    body = view if isinstance(view, bytes) else to_json(view)
    tag = etag_of(body)
    told = {"ETag": tag, "Cache-Control": "private, no-cache", **(headers or {})}
    if matches(request.headers.get("if-none-match"), tag):
        return Response(None, 304, told)
    return Response(body, 200, told, media_type="application/json")


def etag_of(body: bytes) -> str:
    """A strong tag of some bytes."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def matches(header: str | None, tag: str) -> bool:
    """Whether a header If-Match or If-None-Match names a tag. Weak ones count (RFC 9110, 13.1.2)."""
    if header is None:
        return False
    named = [part.strip().removeprefix("W/") for part in header.split(",")]
    return "*" in named or tag in named


def require_match(request: Request, tag: str) -> None:
    """Raise PreconditionFailed where the request is meant for another version (If-Match)."""
    header = request.headers.get("if-match")
    if header is not None and not matches(header, tag):
        raise PreconditionFailed("it was changed meanwhile", "read it again, and repeat the change")
