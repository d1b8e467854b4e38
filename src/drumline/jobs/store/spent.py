"""What jobs took of devices: by attempt and day, for accounts and for fair shares."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sqlalchemy import Connection, Integer, case, cast, delete, func, insert, select

from drumline.jobs.records import ACTIVE_STATES, Job
from drumline.jobs.store.rows import WHOLE, job_from_row
from drumline.jobs.store.tables import jobs, usage
from drumline.jobs.store.values import Use, are_gpus, day_of, days_between

KEPT_S = 60.0
"""How long a sum is used: on the scale of a half-life nothing."""

HALF_LIVES = 7
"""Beyond which use is as good as forgotten: less than a hundredth of it would count."""


def write_usage(connection: Connection, job: Job, span: tuple[float, float], energy_j: float | None) -> int:
    """Note what one attempt took, in place of what was noted of it before; returns over how many days it went."""
    began, ended = span[0], max(span)
    connection.execute(delete(usage).where(usage.c.job_id == job.id, usage.c.attempt == job.attempt))
    rows = []
    for day, start, stop in days_between(began, ended):
        share = (stop - start) / (ended - began) if ended > began else 1.0
        device_s = (stop - start) * len(job.devices)
        rows.append(
            {
                "job_id": job.id,
                "attempt": job.attempt,
                "day": day,
                "owner": job.owner,
                "node": job.node,
                "num_devices": len(job.devices),
                "device_s": device_s,
                "gpu_s": device_s if are_gpus(job.devices) else 0.0,
                "energy_j": None if energy_j is None else energy_j * share,
                "until": stop,
            }
        )
    connection.execute(insert(usage), rows)
    return len(rows)


class KnownUsage:
    """What owners have used as it was summed last, so that a decision does not sum the whole table again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sums: dict[str, tuple[float, float, float, dict[str, float]]] = {}
        """By node: when it was summed, with which half-life, up to which moment, and by owner."""

    def forget(self, node: str) -> None:
        """Sum anew next time."""
        self._sums.pop(node, None)

    def find(self, connection: Connection, node: str, now: float, half_life_h: float) -> dict[str, float]:
        """Owner -> seconds times devices, each halved for every half_life_h hours that it is ago."""
        at, known_h, end, used = self._sums.get(node, (-math.inf, half_life_h, now, {}))
        if self._clock() - at >= KEPT_S or known_h != half_life_h or end > now:
            # Another service notes what ended some moments ago: of that nothing is kept.
            end = now - KEPT_S
            used = _ended_usage(connection, node, (-math.inf, end), now, half_life_h)
            self._sums[node] = self._clock(), half_life_h, end, used
        used = dict(used)
        for found in (
            _ended_usage(connection, node, (end, math.inf), now, half_life_h),
            _running_usage(connection, node, now),
        ):
            for owner, device_s in found.items():
                used[owner] = used.get(owner, 0.0) + device_s
        return used


def _ended_usage(
    connection: Connection, node: str, span: tuple[float, float], now: float, half_life_h: float
) -> dict[str, float]:
    """What attempts took that ended after span[0] and up to span[1]."""
    half_life_s = half_life_h * 3600
    # Summed in steps of a twentieth of the half-life, by the database: a step more or less is 3.5%.
    ago = cast((now - usage.c.until) / (half_life_s / 20), Integer)
    query = (
        select(usage.c.owner, ago, func.sum(usage.c.device_s))
        .where(usage.c.node == node, usage.c.until > max(span[0], now - HALF_LIVES * half_life_s))
        .group_by(usage.c.owner, ago)
    )
    if span[1] < math.inf:
        query = query.where(usage.c.until <= span[1])
    used: dict[str, float] = {}
    for owner, steps, device_s in connection.execute(query):
        used[owner] = used.get(owner, 0.0) + device_s * 0.5 ** (max(steps, 0) / 20)
    return used


def _running_usage(connection: Connection, node: str, now: float) -> dict[str, float]:
    """What attempts that go on have taken up to now."""
    used: dict[str, float] = {}
    running = select(jobs.c.owner, jobs.c.attempt_began, jobs.c.devices).where(
        jobs.c.node == node, jobs.c.state.in_(sorted(ACTIVE_STATES)), jobs.c.attempt_began.is_not(None)
    )
    for owner, began, devices in connection.execute(running):
        used[owner] = used.get(owner, 0.0) + max(now - began, 0.0) * len(devices)
    return used


def read_running(connection: Connection, owner: str | None) -> tuple[Job, ...]:
    """The jobs of all machines, or of an owner, of which an attempt goes on."""
    goes_on = WHOLE.where(jobs.c.state.in_(sorted(ACTIVE_STATES)), jobs.c.attempt_began.is_not(None))
    if owner is not None:
        goes_on = goes_on.where(jobs.c.owner == owner)
    return tuple(job_from_row(row) for row in connection.execute(goes_on))


def read_usage(connection: Connection, span: tuple[float, float], owner: str | None) -> tuple[Use, ...]:
    """What ended attempts took on the days from span[0] to span[1], by job and day, the newest jobs first."""
    run_s = func.coalesce(usage.c.device_s / func.nullif(usage.c.num_devices, 0), 0.0)
    measured = case((usage.c.energy_j.is_not(None), usage.c.device_s), else_=0.0)
    sums = (func.sum(each) for each in (run_s, usage.c.device_s, usage.c.gpu_s, usage.c.energy_j, measured))
    head = (jobs.c.id, jobs.c.owner, usage.c.day, jobs.c.state, jobs.c.created, jobs.c.started)
    query = (
        select(*head, func.max(usage.c.attempt), *sums)
        .join(jobs, jobs.c.id == usage.c.job_id)
        .where(usage.c.day.between(day_of(span[0]), day_of(span[1])))
        .group_by(jobs.c.id, usage.c.day)
        .order_by(jobs.c.created.desc(), jobs.c.id.desc(), usage.c.day)
    )
    if owner is not None:
        query = query.where(usage.c.owner == owner)
    return tuple(Use(*row) for row in connection.execute(query))
