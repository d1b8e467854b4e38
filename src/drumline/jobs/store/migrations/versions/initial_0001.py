"""The first shape of the store."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import CheckConstraint, Column, Double, ForeignKey, Integer, Text, UniqueConstraint
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None

JOB_NUMBERS = ("started", "ended", "attempt_began", "pid_began", "stop_asked")
JOB_WORDS = ("user_id", "training_type", "reason", "retry_of", "stop")
JOB_MARKS = ("owner", "node", "state", "kind", "name", "search")
JOB_SAYINGS = ("message", "fix", "waits_for", "tags", "devices")
JOB_DOCUMENTS = ("work", "resources", "progress", "result")


def upgrade() -> None:
    """Make the tables."""
    _make_jobs()
    _make_what_hangs_on_jobs()
    _make_the_rest()


def _needed(name: str, kind: type[TypeEngine[Any]] = Text) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        Column("id", Text, primary_key=True),
        *(_needed(name) for name in (*JOB_MARKS, *JOB_SAYINGS)),
        *(Column(name, Text) for name in JOB_WORDS),
        *(Column(name, Double) for name in JOB_NUMBERS),
        *(_needed(name, Double) for name in ("created", "queued_since", "used_s")),
        *(_needed(name, Integer) for name in ("version", "attempt", "failures", "interruptions")),
        Column("pid", Integer),
    )
    op.create_index("jobs_created", "jobs", ["created", "id"])
    op.create_index("jobs_owner", "jobs", ["owner", "created", "id"])
    op.create_index("jobs_owner_state", "jobs", ["owner", "state", "created", "id"])
    op.create_index("jobs_state", "jobs", ["state", "created", "id"])
    op.create_index("jobs_kind", "jobs", ["kind", "created", "id"])
    op.create_index("jobs_user", "jobs", ["user_id", "created", "id"])
    op.create_index("jobs_type", "jobs", ["training_type", "created", "id"])
    op.create_index("jobs_node", "jobs", ["node", "state", "id"])


def _make_what_hangs_on_jobs() -> None:
    op.create_table(
        "job_documents",
        Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        *(_needed(name) for name in JOB_DOCUMENTS),
    )
    op.create_table(
        "job_counts",
        Column("owner", Text, primary_key=True),
        Column("state", Text, primary_key=True),
        _needed("number", Integer),
    )
    op.create_table(
        "job_tags",
        Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        Column("tag", Text, primary_key=True),
        _needed("created", Double),
    )
    op.create_index("job_tags_tag", "job_tags", ["tag", "created", "job_id"])
    op.create_table(
        "idempotency",
        Column("owner", Text, primary_key=True),
        Column("key", Text, primary_key=True),
        _needed("fingerprint"),
        Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    )
    op.create_table(
        "leases",
        Column("node", Text, primary_key=True),
        Column("device", Text, primary_key=True),
        Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
        _needed("since", Double),
        _needed("expires", Double),
    )
    op.create_index("leases_job", "leases", ["job_id"])
    op.create_table(
        "usage",
        Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        Column("attempt", Integer, primary_key=True),
        Column("day", Text, primary_key=True),
        _needed("owner"),
        _needed("node"),
        _needed("num_devices", Integer),
        _needed("device_s", Double),
        Column("energy_j", Double),
        _needed("until", Double),
    )
    op.create_index("usage_node", "usage", ["node", "until", "owner", "device_s"])
    op.create_index("usage_day", "usage", ["day", "owner"])


def _make_the_rest() -> None:
    op.create_table(
        "keys",
        Column("id", Text, primary_key=True),
        *(_needed(name) for name in ("hash", "owner", "role", "kind", "name")),
        _needed("created", Double),
        *(Column(name, Double) for name in ("expires", "revoked", "last_used")),
        Column("parent", Text, ForeignKey("keys.id", ondelete="CASCADE")),
        UniqueConstraint("hash", name="keys_hash"),
        CheckConstraint("length(hash) = 64", name="keys_only_hashes"),
    )
    op.create_index("keys_parent", "keys", ["parent"])
    op.create_table(
        "documents",
        Column("id", Text, primary_key=True),
        _needed("kind"),
        _needed("version", Integer),
        _needed("content"),
        _needed("at", Double),
        _needed("by"),
        UniqueConstraint("kind", "version", name="documents_version"),
    )
    op.create_table(
        "audits",
        Column("id", Integer, primary_key=True),
        _needed("at", Double),
        *(_needed(name) for name in ("who", "event", "what")),
    )
    op.create_table(
        "services",
        Column("service_id", Text, primary_key=True),
        _needed("node"),
        _needed("pid", Integer),
        _needed("at", Double),
    )
    op.create_index("services_node", "services", ["node", "at"])
