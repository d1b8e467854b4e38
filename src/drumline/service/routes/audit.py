"""Who did what: keys made, revoked and refused, logins, changes of jobs, plans and defaults."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from drumline.errors import Forbidden
from drumline.jobs.store import AuditFilter
from drumline.service.etags import NOT_CHANGED, tagged
from drumline.service.guarded import StoreRoute, guarded_router
from drumline.service.state import TheService, TheWho
from drumline.service.times import parse_time
from drumline.service.views import View, timestamp

Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class AuditQuery(BaseModel):
    """Which entries are listed: those to which all that is given applies."""

    model_config = ConfigDict(extra="forbid")

    who: Word | None = Field(None, description="An owner, the id of a key, an address, or all of an entry's who.")
    event: list[Word] = Field(default=[], description="One of these, as key_revoked.", max_length=20)
    created_after: Word | None = Field(None, description="RFC 3339, as 2026-01-02T03:04:05Z.")
    created_before: Word | None = Field(None, description="RFC 3339.")
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
    total: int = Field(description="All that fit the filter.")


def router() -> APIRouter:
    """The route of the audit log."""
    routes = guarded_router("audit", kind=StoreRoute)

    @routes.get("/audit", response_model=AuditList, responses=NOT_CHANGED)
    def list_audits(
        request: Request, query: Annotated[AuditQuery, Query()], service: TheService, who: TheWho
    ) -> Response:
        """Who did what, the newest first; admins only. Nothing changes an entry, and only its age removes it."""
        if who.role != "admin":
            raise Forbidden("only admins may see who did what", "ask somebody with an admin's key")
        service.access.refusals.write_due()
        page = service.store.log.audits(query.cursor, query.limit, filter_of(query))
        items = [
            AuditView(id=one.id, at=timestamp(one.at) or "", who=one.who, event=one.event, what=one.what)
            for one in page.items
        ]
        return tagged(request, AuditList(items=items, next=page.next_cursor, total=page.total))

    return routes


def filter_of(query: AuditQuery) -> AuditFilter:
    """What is asked of the store."""
    return AuditFilter(
        who=query.who,
        events=frozenset(query.event),
        after=parse_time("created_after", query.created_after),
        before=parse_time("created_before", query.created_before),
    )
