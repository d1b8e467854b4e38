"""API keys: admins make, list and revoke them."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from drumline.errors import ConfigError, Conflict, Forbidden, IdempotencyConflict, NotFound
from drumline.jobs.requests import Role, Who
from drumline.jobs.store import Key, KeyFilter
from drumline.service.etags import NOT_CHANGED, tagged
from drumline.service.guarded import StoreRoute, guarded_router
from drumline.service.idempotency import OncePerKey, idempotency_of
from drumline.service.new_keys import new_key
from drumline.service.paths import KeyId
from drumline.service.problems import responses
from drumline.service.state import TheService, TheWho
from drumline.service.views import View, timestamp

DAY_S = 86400.0

OwnerName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._@-]*)$")]


class KeyRequest(BaseModel):
    """A key that is to be made."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"owner": "alice", "role": "user"}]})

    owner: OwnerName = Field(description="Whose jobs it sees and changes; *, of a viewer, everybody's.")
    role: Role = Field("user", description="viewer: changes nothing; user: its owner's jobs; admin: everything.")
    name: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field("", description="For people.")
    expires_in_days: Annotated[PositiveFloat, Field(le=36_500, allow_inf_nan=False)] | None = Field(
        None, description="None: until it is revoked."
    )


class KeyView(View):
    """An API key, without its secret."""

    id: str
    owner: str
    role: Role
    name: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class NewKeyView(KeyView):
    """A key that was made."""

    key: str = Field(description="The secret. It is shown this once, and kept nowhere.", examples=["dl_..."])


class KeyQuery(BaseModel):
    """Which keys are listed: those to which all that is given applies."""

    model_config = ConfigDict(extra="forbid")

    owner: OwnerName | None = None
    role: Role | None = None
    valid: bool = Field(False, description="true: only keys that open something now.")
    limit: int = Field(50, ge=1, le=200)
    cursor: Annotated[str, Field(max_length=500, pattern=r"^[\x20-\x7e]*$")] | None = Field(
        None, description="`next` of the page before."
    )


class KeyList(View):
    """Some keys, the newest first."""

    items: list[KeyView]
    next: str | None = Field(None, description="For `cursor`, to have those that follow; null at the end.")
    total: int = Field(description="All that fit the filter.")


def router() -> APIRouter:
    """The routes of keys."""
    routes = guarded_router("keys", kind=StoreRoute)

    @routes.get("/keys", response_model=KeyList, responses=NOT_CHANGED)
    def list_keys(request: Request, query: Annotated[KeyQuery, Query()], service: TheService, who: TheWho) -> Response:
        """API keys, the newest first, those that are revoked or past their end too; admins only."""
        _require_admin(who)
        wanted = KeyFilter(query.owner, query.role, time.time() if query.valid else None)
        page = service.store.keys.find(wanted, query.cursor, query.limit)
        items = [KeyView(**_values(key)) for key in page.items]
        return tagged(request, KeyList(items=items, next=page.next_cursor, total=page.total))

    @routes.post("/keys", status_code=201, responses=responses(409))
    def create_key(body: KeyRequest, service: TheService, who: TheWho, once: OncePerKey = None) -> NewKeyView:
        """Make an API key; admins only. Its secret is in this answer and nowhere else.

        With an Idempotency-Key that was used before it is 409, which names the key that was made then: its secret
        cannot be told again, so revoke it, and ask anew.
        """
        _require_admin(who)
        if body.owner == "*" and body.role != "viewer":
            raise ConfigError("the owner * is everybody, whom only a viewer may see", "give an owner, or role viewer")
        now, days = time.time(), body.expires_in_days
        expires = None if days is None else now + days * DAY_S
        idempotency = idempotency_of(once, who, "keys", body)
        key_id = None if idempotency is None else idempotency.id_of("key")
        secret, key = new_key(body.owner, body.role, now, name=body.name, expires=expires, key_id=key_id)
        try:
            service.store.keys.add(key)
        except Conflict:
            if once is None or service.store.keys.get(key.id) is None:
                raise
            raise IdempotencyConflict(
                f"a request with this Idempotency-Key has made {key.id}, whose secret is told once and kept nowhere",
                f"where its answer was lost, DELETE /keys/{key.id}, and ask with another Idempotency-Key",
            ) from None
        service.board.note("key_created", who, f"{key.id} of {key.owner}, {key.role}")
        return NewKeyView(**_values(key), key=secret)

    @routes.delete("/keys/{key_id}", status_code=204, responses=responses(404))
    def revoke_key(key_id: KeyId, service: TheService, who: TheWho) -> None:
        """Let a key open nothing any more, with the logins that were made with it; admins only."""
        _require_admin(who)
        if not service.store.keys.revoke(key_id, time.time()):
            raise NotFound(f"there is no key {key_id}", "see GET /keys for those that there are")
        service.access.forget()
        service.board.note("key_revoked", who, key_id)

    return routes


def _require_admin(who: Who) -> None:
    if who.role != "admin":
        raise Forbidden("only admins may see and change keys", "ask somebody with an admin's key")


def _values(key: Key) -> dict[str, str | None]:
    return {
        "id": key.id,
        "owner": key.owner,
        "role": key.role,
        "name": key.name,
        "created_at": timestamp(key.created),
        "expires_at": timestamp(key.expires),
        "revoked_at": timestamp(key.revoked),
        "last_used_at": timestamp(key.last_used),
    }
