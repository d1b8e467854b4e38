"""Who did what: keys made and revoked, logins, changes of jobs and defaults."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from drumline.errors import Forbidden
from drumline.service.guarded import guarded_router
from drumline.service.state import TheService, TheWho
from drumline.service.views import View, timestamp


class AuditQuery(BaseModel):
    """Which part of the list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(50, ge=1, le=200)
    cursor: Annotated[str, Field(max_length=10, pattern=r"^[0-9]+$")] | None = Field(
        None, description="`next` of the page before."
    )


class AuditView(View):
    """One thing that somebody did."""

    id: int
    at: str = Field(examples=["2026-01-02T03:04:05.678Z"])
    who: str = Field(description="Owner, and the key by which it came.", examples=["alice (key-1f0e2d3c4b5a6978)"])
    event: str = Field(examples=["key_revoked"])
    what: str = Field(description="What it was done to.")


class AuditList(View):
    """What was done, the newest first."""

    items: list[AuditView]
    next: str | None = Field(None, description="For `cursor`, to have those that follow; null at the end.")
    total: int = Field(description="Of all pages.")


def router() -> APIRouter:
    """The route of the audit log."""
    routes = guarded_router("audit")

    @routes.get("/audit")
    def list_audits(query: Annotated[AuditQuery, Query()], service: TheService, who: TheWho) -> AuditList:
        """Who did what, the newest first; admins only. Nothing changes or removes an entry."""
        if who.role != "admin":
            raise Forbidden("only admins may see who did what", "ask somebody with an admin's key")
        page = service.store.log.audits(query.cursor, query.limit)
        items = [
            AuditView(id=one.id, at=timestamp(one.at) or "", who=one.who, event=one.event, what=one.what)
            for one in page.items
        ]
        return AuditList(items=items, next=page.next_cursor, total=page.total)

    return routes
