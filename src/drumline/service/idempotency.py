"""The header Idempotency-Key: a request that is sent twice is one request."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Header
from pydantic import BaseModel

from drumline.jobs.requests import Who
from drumline.jobs.store import Idempotency

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Chosen by the caller: a request that comes again with the same key and body gives the same job.",
    ),
]


def idempotency_of(key: str | None, who: Who, operation: str, body: BaseModel) -> Idempotency | None:
    """What the store compares; None without a key. Keys of different owners and operations never meet."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{operation}\n{body.model_dump_json(exclude_unset=True)}".encode()).hexdigest()
    return Idempotency(who.owner, key, digest)
