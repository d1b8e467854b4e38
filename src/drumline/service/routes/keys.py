"""API keys: admins make, list and revoke them."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from drumline.errors import ConfigError, Forbidden, NotFound
from drumline.jobs.requests import Role, Who
from drumline.jobs.store import Key
from drumline.service.guarded import guarded_router
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


class KeyList(View):
    """All keys, the newest first."""

    items: list[KeyView]


def router() -> APIRouter:
    """The routes of keys."""
    routes = guarded_router("keys")

    @routes.get("/keys")
    def list_keys(service: TheService, who: TheWho) -> KeyList:
        """All API keys; admins only."""
        _require_admin(who)
        return KeyList(items=[KeyView(**_values(key)) for key in service.store.keys.list()])

    @routes.post("/keys", status_code=201)
    def create_key(body: KeyRequest, service: TheService, who: TheWho) -> NewKeyView:
        """Make an API key; admins only. Its secret is in this answer and nowhere else."""
        _require_admin(who)
        if body.owner == "*" and body.role != "viewer":
            raise ConfigError("the owner * is everybody, whom only a viewer may see", "give an owner, or role viewer")
        now, days = time.time(), body.expires_in_days
        expires = None if days is None else now + days * DAY_S
        secret, key = new_key(body.owner, body.role, now, name=body.name, expires=expires)
        service.store.keys.add(key)
        service.store.log.audit("key_created", _name(who), f"{key.id} of {key.owner}, {key.role}", now)
        return NewKeyView(**_values(key), key=secret)

    @routes.delete("/keys/{key_id}", status_code=204, responses=responses(404))
    def revoke_key(key_id: KeyId, service: TheService, who: TheWho) -> None:
        """Let a key open nothing any more, with the logins that were made with it; admins only."""
        _require_admin(who)
        now = time.time()
        if not service.store.keys.revoke(key_id, now):
            raise NotFound(f"there is no key {key_id}", "see GET /keys for those that there are")
        service.store.log.audit("key_revoked", _name(who), key_id, now)

    return routes


def _require_admin(who: Who) -> None:
    if who.role != "admin":
        raise Forbidden("only admins may see and change keys", "ask somebody with an admin's key")


def _name(who: Who) -> str:
    return f"{who.owner} ({who.key_id or 'loopback'})"


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
