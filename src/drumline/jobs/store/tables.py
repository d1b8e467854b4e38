"""The tables, as the newest migration leaves them (a test compares the two)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

REVISION = "0002"
"""Of the newest migration."""

VERSION_TABLE = "drumline_version"


class Words(TypeDecorator[str]):
    """Text that any database takes: PostgreSQL has no NUL, and no encoding has half a surrogate pair."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Put a replacement character where one cannot be kept, in what is written as in what is looked for."""
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Document(TypeDecorator[Any]):
    """JSON as text, so that NaN and every character come back from any database as they went in."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """Write it."""
        return json.dumps(value, default=_plain, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Read it."""
        return None if value is None else json.loads(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be kept in the store: {value!r}")


metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", Words, primary_key=True),
    Column("owner", Words, nullable=False),
    Column("node", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("created", Double, nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", Words, nullable=False),
    Column("name", Words, nullable=False),
    Column("user_id", Words),
    Column("training_type", Words),
    Column("search", Words, nullable=False),
    Column("reason", Words),
    Column("message", Words, nullable=False),
    Column("fix", Words, nullable=False),
    Column("retry_of", Words),
    Column("queued_since", Double, nullable=False),
    Column("started", Double),
    Column("ended", Double),
    Column("attempt", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("interruptions", Integer, nullable=False),
    Column("attempt_began", Double),
    Column("used_s", Double, nullable=False),
    Column("pid", Integer),
    Column("pid_began", Double),
    Column("stop", Words),
    Column("stop_asked", Double),
    Column("waits_for", Words, nullable=False),
    Column("tags", Document, nullable=False),
    Column("devices", Document, nullable=False),
    # A list is read along one of these, newest first, from where the page before it ended.
    Index("jobs_created", "created", "id"),
    Index("jobs_owner", "owner", "created", "id"),
    Index("jobs_owner_state", "owner", "state", "created", "id"),
    Index("jobs_state", "state", "created", "id"),
    Index("jobs_kind", "kind", "created", "id"),
    Index("jobs_user", "user_id", "created", "id"),
    Index("jobs_type", "training_type", "created", "id"),
    Index("jobs_node", "node", "state", "id"),
)

# Beside the jobs, whose rows are then short: lists are looked through fast, and telling progress moves no index.
job_documents = Table(
    "job_documents",
    metadata,
    Column("job_id", Words, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("work", Document, nullable=False),
    Column("resources", Document, nullable=False),
    Column("progress", Document, nullable=False),
    Column("result", Document, nullable=False),
)

job_counts = Table(
    "job_counts",
    metadata,
    Column("owner", Words, primary_key=True),
    Column("state", Words, primary_key=True),
    Column("number", Integer, nullable=False),
)

job_tags = Table(
    "job_tags",
    metadata,
    Column("job_id", Words, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Words, primary_key=True),
    Column("created", Double, nullable=False),
    Index("job_tags_tag", "tag", "created", "job_id"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", Words, primary_key=True),
    Column("key", Words, primary_key=True),
    Column("fingerprint", Words, nullable=False),
    Column("job_id", Words, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
)

leases = Table(
    "leases",
    metadata,
    # That one device is not leased twice is this key's doing, whatever the code does.
    Column("node", Words, primary_key=True),
    Column("device", Words, primary_key=True),
    Column("job_id", Words, ForeignKey("jobs.id"), nullable=False),
    Column("since", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Index("leases_job", "job_id"),
)

usage = Table(
    "usage",
    metadata,
    Column("job_id", Words, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("day", Words, primary_key=True),
    Column("owner", Words, nullable=False),
    Column("node", Words, nullable=False),
    Column("num_devices", Integer, nullable=False),
    Column("device_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False, server_default="0"),
    Column("energy_j", Double),
    Column("until", Double, nullable=False),
    Index("usage_node", "node", "until", "owner", "device_s"),
    Index("usage_day", "day", "owner"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Words, primary_key=True),
    Column("hash", Words, nullable=False),
    Column("owner", Words, nullable=False),
    Column("role", Words, nullable=False),
    Column("created", Double, nullable=False),
    Column("kind", Words, nullable=False),
    Column("name", Words, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("last_used", Double),
    Column("parent", Words, ForeignKey("keys.id", ondelete="CASCADE")),
    UniqueConstraint("hash", name="keys_hash"),
    CheckConstraint("length(hash) = 64", name="keys_only_hashes"),
    Index("keys_parent", "parent"),
)

documents = Table(
    "documents",
    metadata,
    Column("id", Words, primary_key=True),
    Column("kind", Words, nullable=False),
    Column("version", Integer, nullable=False),
    Column("content", Document, nullable=False),
    Column("at", Double, nullable=False),
    Column("by", Words, nullable=False),
    UniqueConstraint("kind", "version", name="documents_version"),
)

audits = Table(
    "audits",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("who", Words, nullable=False),
    Column("event", Words, nullable=False),
    Column("what", Words, nullable=False),
)

services = Table(
    "services",
    metadata,
    Column("service_id", Words, primary_key=True),
    Column("node", Words, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("at", Double, nullable=False),
    Index("services_node", "node", "at"),
)
