"""What the store takes and gives beside jobs and leases. Plain values; times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from drumline.jobs.records import JobKind, State

Role = Literal["viewer", "user", "admin"]
KeyKind = Literal["key", "session"]
DocumentKind = Literal["defaults", "plan"]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Idempotency:
    """What makes a request that is sent twice one request: a key of its sender's, and a digest of what it asks."""

    owner: str
    key: str
    fingerprint: str


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are listed: those to which all that is given applies."""

    owner: str | None = None
    states: frozenset[State] = frozenset()
    """Empty: any."""
    kind: JobKind | None = None
    tag: str | None = None
    user_id: str | None = None
    training_type: str | None = None
    created_after: float | None = None
    """Not before this moment."""
    created_before: float | None = None
    """Before this moment."""
    text: str | None = None
    """Part of its id, name, model's name, user_id or a tag, in any case of letters."""


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page of a list, newest first."""

    items: tuple[Item, ...]
    next_cursor: str | None
    """Where the next page begins; None: this is the last one."""
    total: int
    """Of all pages."""


@dataclass(frozen=True)
class Versioned:
    """One document as it was put: a later one of its kind does not replace it."""

    id: str
    kind: DocumentKind
    version: int
    """1, 2, … among those of its kind."""
    values: Mapping[str, Any]
    at: float
    by: str


@dataclass(frozen=True)
class Key:
    """An API key, or a login that was made with one. The secret itself is nowhere."""

    id: str
    hash: str
    """sha256 of the secret, in hex."""
    owner: str
    role: Role
    created: float
    kind: KeyKind = "key"
    name: str = ""
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None
    """To the minute."""
    parent: str | None = None
    """Of a session: the key with which it was opened, and with which it is revoked."""

    def is_valid(self, now: float) -> bool:
        """Whether it opens anything."""
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True)
class Audit:
    """One thing that somebody did."""

    id: int
    at: float
    who: str
    event: str
    what: str


@dataclass(frozen=True)
class Beat:
    """A service that looks after jobs of a node, as of its last sign of life."""

    service_id: str
    node: str
    pid: int
    at: float


@dataclass(frozen=True)
class UsageSum:
    """What all attempts of one group took."""

    group: str
    """An owner, a day or a job's id."""
    num_jobs: int
    device_s: float
    energy_j: float | None
