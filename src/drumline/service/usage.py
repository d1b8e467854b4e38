"""What jobs have taken of the machines in a time, and what came of it: rates, waiting, goodput, energy, cost. Pure.

One rule for all sums: what was used on the days of the time counts, whenever its job was asked for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from drumline.jobs.records import ACTIVE_STATES, Job
from drumline.jobs.results import device_seconds
from drumline.jobs.spending import SPENT_BEFORE
from drumline.jobs.store.values import Use, are_gpus, day_of, days_between

NOBODY: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class JobRates:
    """What came of one job, over all its attempts; None where nobody has measured it."""

    goodput: float | None
    """Share of the time that its processes ran, 0 to 1, that went into training that was kept."""
    units_per_s: float | None
    unit: str | None
    mfu: float | None
    cost_per_device_s: float
    """By what the run itself has recorded."""


@dataclass(frozen=True)
class Sums:
    """Several uses together."""

    jobs: int
    by_state: Mapping[str, int]
    run_s: float
    device_s: float
    gpu_s: float
    energy_j: float | None
    """Of those that were measured; None where none was."""
    measured_device_s: float
    """Those of device_s that energy_j is of."""
    cost: float
    queue_mean_s: float | None
    """Of jobs that first started on these days, as are those that follow."""
    queue_p50_s: float | None
    queue_p95_s: float | None
    queue_max_s: float | None
    goodput: float | None
    """Over jobs of which it is known, weighted by the time of their devices."""
    mfu: float | None
    """The same."""
    units_per_s: Mapping[str, float]
    """By unit, the mean over jobs, weighted by the time that they ran."""


def rates_of(job: Job, now: float) -> JobRates:
    """What came of one job up to now (s since 1970)."""
    began = job.attempt_began
    present = max(0.0, now - began) if began is not None and job.state in ACTIVE_STATES else 0.0
    run_s = job.used_s + present
    told: Mapping[str, Any] = job.result.get("usage") or job.result.get("gpu_stats") or {}
    trained_s = _first(told.get("useful_seconds"), job.result.get("training_time"), job.progress.get("elapsed_s"))
    device_s = device_seconds(job, run_s)
    rate = _first(job.progress.get("units_per_s"))
    return JobRates(
        goodput=None if trained_s is None or run_s <= 0 else min(1.0, trained_s / run_s),
        units_per_s=rate,
        unit=None if rate is None else job.progress.get("unit"),
        mfu=_first(told.get("mfu"), job.progress.get("mfu")),
        cost_per_device_s=(_first(told.get("cost")) or 0.0) / device_s if device_s > 0 else 0.0,
    )


def with_running(
    noted: Sequence[Use], running: Iterable[Job], since: float, now: float, seen: Mapping[str, float] = NOBODY
) -> list[Use]:
    """What is noted of ended attempts, and what those that go on have taken since then up to now (s since 1970).

    running: jobs as they were read before `noted`; an attempt that has ended in between is noted already. seen: until
    when those have been looked after, by id, of which nobody knows whether they go on up to now.
    """
    attempts: dict[str, int] = {}
    for use in noted:
        attempts[use.job_id] = max(use.attempt, attempts.get(use.job_id, 0))
    found = list(noted)
    for job in running:
        if job.attempt > attempts.get(job.id, 0):
            found += [use for use in _taken(job, seen.get(job.id, now)) if use.day >= day_of(since)]
    return found


def _taken(job: Job, now: float) -> list[Use]:
    """What the attempt of a job that goes on has taken up to now, by day; its energy is spread evenly."""
    began = job.attempt_began
    if began is None or now <= began:
        return []
    energy = _first(job.progress.get("energy_j")) or 0.0
    # The run's own sum is over all attempts.
    energy -= _first(job.progress.get(SPENT_BEFORE)) or 0.0
    uses = []
    for day, start, stop in days_between(began, now):
        run_s = stop - start
        device_s = run_s * len(job.devices)
        uses.append(
            Use(
                job_id=job.id,
                owner=job.owner,
                day=day,
                state=job.state,
                created=job.created,
                started=job.started,
                attempt=job.attempt,
                run_s=run_s,
                device_s=device_s,
                gpu_s=device_s if are_gpus(job.devices) else 0.0,
                energy_j=energy * run_s / (now - began) if energy > 0 else None,
                measured_device_s=device_s if energy > 0 else 0.0,
            )
        )
    return uses


def summed(uses: Iterable[Use], rates: Mapping[str, JobRates], price_per_gpu_hour: float = 0.0) -> Sums:
    """Several uses together. rates: of the jobs of which they are known.

    price_per_gpu_hour: where there is none, the cost is what those jobs have recorded.
    """
    uses = list(uses)
    known = [(use, rates[use.job_id]) for use in uses if use.job_id in rates]
    states: dict[str, int] = defaultdict(int)
    for state in {use.job_id: use.state for use in uses}.values():
        states[state] += 1
    # A wait counts once, on the day on which it was over.
    begun = {
        use.job_id: max(0.0, use.started - use.created)
        for use in uses
        if use.started is not None and day_of(use.started) == use.day
    }
    waits = sorted(begun.values())
    energies = [use.energy_j for use in uses if use.energy_j is not None]
    gpu_s = math.fsum(use.gpu_s for use in uses)
    recorded = math.fsum(rate.cost_per_device_s * use.device_s for use, rate in known)
    return Sums(
        jobs=sum(states.values()),
        by_state=dict(sorted(states.items())),
        run_s=math.fsum(use.run_s for use in uses),
        device_s=math.fsum(use.device_s for use in uses),
        gpu_s=gpu_s,
        energy_j=math.fsum(energies) if energies else None,
        measured_device_s=math.fsum(use.measured_device_s for use in uses),
        cost=gpu_s / 3600 * price_per_gpu_hour if price_per_gpu_hour > 0 else recorded,
        queue_mean_s=sum(waits) / len(waits) if waits else None,
        queue_p50_s=quantile(waits, 0.5),
        queue_p95_s=quantile(waits, 0.95),
        queue_max_s=waits[-1] if waits else None,
        goodput=_weighted((rate.goodput, use.device_s) for use, rate in known),
        mfu=_weighted((rate.mfu, use.device_s) for use, rate in known),
        units_per_s=_means(known),
    )


def _means(known: Iterable[tuple[Use, JobRates]]) -> dict[str, float]:
    rated: dict[str, list[tuple[float | None, float]]] = defaultdict(list)
    for use, rate in known:
        if rate.unit is not None:
            rated[rate.unit].append((rate.units_per_s, use.run_s))
    means = {unit: _weighted(pairs) for unit, pairs in sorted(rated.items())}
    return {unit: mean for unit, mean in means.items() if mean is not None}


def grouped(uses: Iterable[Use], key: Callable[[Use], str]) -> dict[str, list[Use]]:
    """The uses of each group, in the order of their first ones."""
    groups: dict[str, list[Use]] = defaultdict(list)
    for use in uses:
        groups[key(use)].append(use)
    return dict(groups)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value of sorted ones below which this share of them lies (nearest rank); None of none."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total > 0 else None


def _first(*values: Any) -> float | None:
    """The first that is a finite number; None where none is."""
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None
