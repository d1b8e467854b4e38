"""What the store takes and gives beside jobs and leases. Plain values; times are seconds since 1970."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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

    def id_of(self, kind: str) -> str:
        """The id of what the request makes: another request with the same key can make no other one."""
        return f"{kind}-" + hashlib.sha256(f"{self.owner}\n{self.key}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are listed: those to which all that is given applies."""

    owner: str | None = None
    states: frozenset[State] = frozenset()
    """Empty: any."""
    kind: JobKind | None = None
    not_kind: JobKind | None = None
    has_begun: Literal[True] | None = None
    """Those that run, have run or have ended: none that wait for their first devices."""
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
class KeyFilter:
    """Which keys are listed: those to which all that is given applies."""

    owner: str | None = None
    role: Role | None = None
    valid_at: float | None = None
    """Those that open something at this moment."""


@dataclass(frozen=True)
class AuditFilter:
    """Which audit events are listed: those to which all that is given applies."""

    who: str | None = None
    """An owner, the id of a key, or both as Audit.who has them."""
    events: frozenset[str] = frozenset()
    """Empty: any."""
    after: float | None = None
    """Not before this moment."""
    before: float | None = None
    """Before this moment."""


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
class Use:
    """What attempts of one job took on one day."""

    job_id: str
    owner: str
    day: str
    """UTC, as 2026-01-02."""
    state: State
    """Of the job, now."""
    created: float
    started: float | None
    attempt: int
    """The newest of the attempts."""
    run_s: float
    device_s: float
    """Seconds times devices."""
    gpu_s: float
    """The same of those that are GPUs."""
    energy_j: float | None
    """Of those attempts that were measured; None where none was."""
    measured_device_s: float
    """Those of device_s that energy_j is of."""


def are_gpus(devices: Iterable[str]) -> bool:
    """Whether a job's devices are GPUs; else they are slots of a machine without any, or it has none."""
    return any(not device.startswith("cpu:") for device in devices)


def days_between(began: float, ended: float) -> list[tuple[str, float, float]]:
    """A span of time cut at midnight UTC: day, start and end of each piece; one piece at least."""
    pieces = []
    start = began
    while True:
        day = datetime.fromtimestamp(start, UTC).date()
        midnight = datetime.combine(day + timedelta(days=1), datetime.min.time(), UTC).timestamp()
        pieces.append((day.isoformat(), start, min(midnight, ended)))
        if ended <= midnight:
            return pieces
        start = midnight


def day_of(moment: float) -> str:
    """The day of a moment, in UTC."""
    return datetime.fromtimestamp(moment, UTC).date().isoformat()
