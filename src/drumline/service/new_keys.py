"""Makes API keys: a secret that is shown once, and the record that is kept of it."""

from __future__ import annotations

import re
import secrets

from drumline.jobs.requests import Role
from drumline.jobs.store import Key
from drumline.service.access import hash_of

PREFIX = "dl_"
"""By which people, and scanners for lost secrets, know one."""
SECRET_BYTES = 32
OWNER = re.compile(r"(?:\*|[A-Za-z0-9][A-Za-z0-9._@-]{0,99})\Z")
"""What an owner is called; * is everybody."""


def new_key(
    owner: str, role: Role, now: float, *, name: str = "", expires: float | None = None, key_id: str | None = None
) -> tuple[str, Key]:
    """A new secret, and its record for Store.keys.add. The secret is nowhere else: who loses it makes another."""
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    key_id = "key-" + secrets.token_hex(4) if key_id is None else key_id
    return secret, Key(key_id, hash_of(secret), owner, role, now, name=name, expires=expires)
