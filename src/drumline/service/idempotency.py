"""The header Idempotency-Key: a request that is sent twice is one request."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import Header, Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from drumline.errors import ConfigError
from drumline.jobs.requests import Who
from drumline.jobs.store import Idempotency

NAME = "Idempotency-Key"


def _header(description: str) -> Any:
    return Header(alias=NAME, max_length=200, pattern=r"^[\x21-\x7e]+$", description=description)


IdempotencyKey = Annotated[
    str | None,
    _header(
        "Chosen by the caller: a request that comes again within a day, with the same key and body, gives the same job."
    ),
]
PlanOnce = Annotated[
    str | None,
    _header(
        "Chosen by the caller: a request that comes again with the same key and body gives the same plan, for as long "
        "as that can be started."
    ),
]
OncePerKey = Annotated[
    str | None,
    _header(
        "Chosen by the caller: a request that comes again with the same key is refused (409), and told the id of what "
        "the first one made."
    ),
]
Repeated = Annotated[str | None, _header("Taken, and not needed: asked twice, it is done once all the same.")]


def takes_key(route: Dependant) -> bool:
    """Whether a route has a parameter of one of these kinds."""
    return any(field.alias == NAME for field in route.header_params)


def refuse_key(request: Request) -> None:
    """Raise ConfigError where a key comes to a route that would ignore it, so that a repeat would be done twice."""
    if NAME in request.headers:
        raise ConfigError(
            f"{request.method} of this path knows no {NAME}: sent again, it would be done again",
            "leave the header out, and after a lost answer look what there is before you repeat it",
        )


def idempotency_of(key: str | None, who: Who, operation: str, body: BaseModel) -> Idempotency | None:
    """What the store compares; None without a key. Keys of different owners and operations never meet."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{operation}\n{body.model_dump_json(exclude_unset=True)}".encode()).hexdigest()
    return Idempotency(who.owner, key, digest)
