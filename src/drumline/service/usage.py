"""What jobs have taken of the machine and what came of it: rates, waiting, goodput, energy, cost. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from drumline.jobs.records import ACTIVE_STATES, Job, State
from drumline.jobs.results import cost_of, device_seconds


@dataclass(frozen=True)
class JobUsage:
    """One job; None where nobody has measured it."""

    job_id: str
    owner: str
    name: str
    state: State
    day: str
    """UTC, as 2026-01-02: of its end, or today while it goes on."""
    queue_s: float
    """From when it was asked for until it first started, or until now or its end."""
    run_s: float
    """Seconds that its processes ran, over all attempts."""
    trained_s: float | None
    """Of them, those of training that was kept: start-up, and updates that were made again, are not in it."""
    device_s: float
    """Seconds times devices."""
    gpu_s: float
    energy_j: float | None
    cost: float
    units_per_s: float | None
    unit: str | None
    mfu: float | None

    @property
    def goodput(self) -> float | None:
        """Share of the time that its processes ran, 0 to 1, that went into training that was kept."""
        if self.trained_s is None or self.run_s <= 0:
            return None
        return min(1.0, self.trained_s / self.run_s)


@dataclass(frozen=True)
class Sums:
    """Several jobs together."""

    jobs: int
    by_state: Mapping[str, int]
    run_s: float
    device_s: float
    gpu_s: float
    energy_j: float | None
    """Of those that were measured; None where none was."""
    cost: float
    queue_mean_s: float | None
    queue_p50_s: float | None
    queue_p95_s: float | None
    queue_max_s: float | None
    goodput: float | None
    """Over jobs of which it is known, weighted by the time that they ran."""
    mfu: float | None
    """The same."""
    units_per_s: Mapping[str, float]
    """By unit, the mean over jobs, weighted by the time that they ran."""


def usage_of(job: Job, now: float, price_per_gpu_hour: float = 0.0) -> JobUsage:
    """What one job has taken up to now (s since 1970).

    price_per_gpu_hour: where there is none, the cost is what the run itself has recorded.
    """
    began = job.attempt_began
    ended = job.ended if job.ended is not None else now
    present = max(0.0, now - began) if began is not None and job.state in ACTIVE_STATES else 0.0
    run_s = job.used_s + present
    told: Mapping[str, Any] = job.result.get("usage") or job.result.get("gpu_stats") or job.progress
    is_gpu = any(not device.startswith("cpu:") for device in job.devices)
    device_s = device_seconds(job, run_s)
    gpu_s = _number(told.get("gpu_seconds", told.get("gpu_s"))) or (device_s if is_gpu else 0.0)
    energy = _number(told.get("energy_j"))
    first = job.started if job.started is not None else ended
    return JobUsage(
        job_id=job.id,
        owner=job.owner,
        name=job.name,
        state=job.state,
        day=datetime.fromtimestamp(ended, UTC).date().isoformat(),
        queue_s=max(0.0, first - job.created),
        run_s=run_s,
        trained_s=_number(job.result.get("training_time")) or _number(job.progress.get("elapsed_s")),
        device_s=device_s,
        gpu_s=gpu_s,
        energy_j=energy or None,  # a run that recorded no GPU has 0 in its place
        cost=cost_of(job, device_s, price_per_gpu_hour, _number(told.get("cost")) or 0.0),
        units_per_s=_number(job.progress.get("units_per_s")),
        unit=job.progress.get("unit") if job.progress.get("units_per_s") is not None else None,
        mfu=_number(job.progress.get("mfu")),
    )


def summed(usages: Iterable[JobUsage]) -> Sums:
    """Several jobs together."""
    jobs = list(usages)
    states: dict[str, int] = defaultdict(int)
    for each in jobs:
        states[each.state] += 1
    waits = sorted(each.queue_s for each in jobs)
    energies = [each.energy_j for each in jobs if each.energy_j is not None]
    units = {each.unit for each in jobs if each.unit is not None}
    rates = {unit: _weighted((each.units_per_s, each.run_s) for each in jobs if each.unit == unit) for unit in units}
    return Sums(
        jobs=len(jobs),
        by_state=dict(sorted(states.items())),
        run_s=sum(each.run_s for each in jobs),
        device_s=sum(each.device_s for each in jobs),
        gpu_s=sum(each.gpu_s for each in jobs),
        energy_j=sum(energies) if energies else None,
        cost=sum(each.cost for each in jobs),
        queue_mean_s=sum(waits) / len(waits) if waits else None,
        queue_p50_s=quantile(waits, 0.5),
        queue_p95_s=quantile(waits, 0.95),
        queue_max_s=waits[-1] if waits else None,
        goodput=_weighted((each.goodput, each.run_s) for each in jobs),
        mfu=_weighted((each.mfu, each.run_s) for each in jobs),
        units_per_s={unit: rate for unit, rate in sorted(rates.items()) if rate is not None},
    )


def grouped(usages: Iterable[JobUsage], key: Callable[[JobUsage], str]) -> dict[str, Sums]:
    """The sums of each group, in the order of their keys."""
    groups: dict[str, list[JobUsage]] = defaultdict(list)
    for each in usages:
        groups[key(each)].append(each)
    return {name: summed(groups[name]) for name in sorted(groups)}


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value of sorted ones below which this share of them lies (nearest rank); None of none."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total > 0 else None


def _number(value: Any) -> float | None:
    """A finite number; None for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
