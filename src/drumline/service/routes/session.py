"""Logins of the web page: a key is given once, and a cookie that scripts cannot read stands for it."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from drumline.errors import Unauthorized
from drumline.jobs.requests import Role, Who
from drumline.jobs.store import Key
from drumline.service.access import COOKIE, Caller, find_key, hash_of
from drumline.service.guarded import guarded_router, open_router
from drumline.service.state import Service, TheBase, TheService, TheWho, caller_of
from drumline.service.views import View, timestamp


class LoginRequest(BaseModel):
    """A login."""

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, json_schema_extra={"examples": [{"key": "dl_..."}]}
    )

    key: Annotated[str, Field(min_length=1, max_length=200, description="An API key.", examples=["dl_..."])]


class SessionView(View):
    """Who asks."""

    owner: str
    role: Role
    by: Literal["key", "cookie", "loopback"] = Field(description="By what it is known.")
    expires_at: str | None = Field(None, description="Of a login that was just made.")
    needs_key: bool = Field(description="Whether this service asks everybody for a key.")


async def _caller(request: Request, who: TheWho) -> Caller:
    return caller_of(request)


def router() -> APIRouter:
    """The routes of logins."""
    routes = APIRouter()
    open_routes = open_router("session", statuses=(401,))
    guarded = guarded_router("session")

    @open_routes.post("/session", status_code=201)
    def log_in(
        body: LoginRequest, request: Request, response: Response, service: TheService, base: TheBase
    ) -> SessionView:
        """Log in with an API key: the answer sets a cookie. Changes by cookie need the header X-Drumline: 1."""
        now = time.time()
        key = _key_of(body, request, service, now)
        lasts_s = service.config.access.session_hours * 3600
        expires = now + lasts_s if key.expires is None else min(now + lasts_s, key.expires)
        secret = secrets.token_urlsafe(32)
        service.store.keys.drop_sessions(now)
        session_id = "session-" + secrets.token_hex(8)
        service.store.keys.add(
            Key(session_id, hash_of(secret), key.owner, key.role, now, kind="session", expires=expires, parent=key.id)
        )
        service.board.note("login", Who(key.owner, key.role, key.id), session_id)
        response.set_cookie(
            COOKIE,
            secret,
            max_age=int(expires - now),
            path=base or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return SessionView(
            owner=key.owner,
            role=key.role,
            by="cookie",
            expires_at=timestamp(expires),
            needs_key=service.access.needs_key,
        )

    @guarded.get("/session")
    def show_session(service: TheService, who: TheWho, caller: Annotated[Caller, Depends(_caller)]) -> SessionView:
        """Who asks, and by what that is known."""
        return SessionView(owner=who.owner, role=who.role, by=caller.by, needs_key=service.access.needs_key)

    @guarded.delete("/session", status_code=204)
    def log_out(
        response: Response, service: TheService, base: TheBase, caller: Annotated[Caller, Depends(_caller)]
    ) -> None:
        """Log out: the cookie opens nothing any more. Of who came with a key itself nothing changes."""
        if caller.session is not None:
            service.store.keys.revoke(caller.session, time.time())
            service.access.forget()
            service.board.note("logout", caller.who, caller.session)
        response.delete_cookie(COOKIE, path=base or "/", httponly=True, samesite="strict")

    routes.include_router(open_routes)
    routes.include_router(guarded)
    return routes


def _key_of(body: LoginRequest, request: Request, service: Service, now: float) -> Key:
    """The key of a login. Raises Unauthorized, which the audit log then has."""
    key = find_key(service.store, body.key.strip(), "key", now)
    if key is None:
        address = request.client.host if request.client is not None else None
        service.access.note_refused(address, "login_refused", body.key.strip())
        raise Unauthorized("the API key is unknown, revoked or past its end", "see that it was copied whole")
    return key
