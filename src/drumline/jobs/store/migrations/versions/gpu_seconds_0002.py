"""What was used says how much of it was of GPUs: slots of a machine without any have no price."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, and_, column, or_, select, table, update

revision = "0002"
down_revision = "0001"

USAGE = table("usage", column("job_id"), column("device_s", Double), column("gpu_s", Double))
JOBS = table("jobs", column("id"), column("node"), column("devices"))


def upgrade() -> None:
    """Add the column, and fill it by the devices that each job has or had last."""
    op.add_column("usage", Column("gpu_s", Double, nullable=False, server_default="0"))
    has_slots = JOBS.c.devices.like('%"cpu:%')
    # One that waits to go on holds none: its node has GPUs, or slots.
    waits = and_(JOBS.c.devices == "[]", JOBS.c.node.in_(select(JOBS.c.node).where(has_slots)))
    on_slots = select(JOBS.c.id).where(or_(has_slots, waits))
    op.execute(update(USAGE).where(USAGE.c.job_id.not_in(on_slots)).values(gpu_s=USAGE.c.device_s))
