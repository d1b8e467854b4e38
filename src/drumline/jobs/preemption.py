"""Which running jobs make room for one that waits: elastic ones by shrinking, else those of lower priority. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drumline.config.service import SchedulingConfig
from drumline.jobs.fleet import Fleet
from drumline.jobs.placement import suits
from drumline.jobs.priorities import goes_before
from drumline.jobs.records import Job


@dataclass(frozen=True)
class Leaver:
    """A running job that makes room."""

    job: Job
    gives: int
    """Devices that it makes free for the one that waits."""
    keeps: int | None = None
    """Devices that it goes on with at once; None: it waits again."""


def make_room(job: Job, fleet: Fleet, now: float, policy: SchedulingConfig) -> tuple[Leaver, ...]:
    """Those that stop for `job`, so that it then starts; empty where all that may be stopped would not do.

    A job is stopped for one of higher base priority only, and only if that comes first also with all waiting counted.
    """
    asked = job.resources
    missing = asked.least - fleet.free.count(asked) - fleet.coming.count(asked)
    chosen = {leaver.job.id: leaver for leaver in _shrinking(job, missing, fleet)}
    total = sum(leaver.gives for leaver in chosen.values())
    if policy.preempt and total < missing:
        for leaver in _preempted(job, fleet, now, policy.ageing_s):
            total += leaver.gives - (chosen[leaver.job.id].gives if leaver.job.id in chosen else 0)
            chosen[leaver.job.id] = leaver
            if total >= missing:
                break
    return _needed(chosen, total - missing) if total >= missing else ()


def _shrinking(job: Job, missing: int, fleet: Fleet) -> Iterator[Leaver]:
    """Elastic jobs, that first which can give most, each with no more than is still missing."""
    if fleet.usable.count(job.resources) < fleet.usable.count():
        # What a shrunk job keeps is chosen anew when it starts, and might be just the devices that are wanted.
        return
    able = [
        (len(fleet.held.get(other.id, ())) - other.resources.least, other)
        for other in fleet.elastic
        if other.id not in fleet.leaving
    ]
    for surplus, other in sorted(able, key=lambda pair: -pair[0]):
        gives = min(surplus, missing)
        if gives <= 0:
            return
        missing -= gives
        yield Leaver(other, gives, keeps=len(fleet.held[other.id]) - gives)


def _preempted(job: Job, fleet: Fleet, now: float, ageing_s: float) -> Iterator[Leaver]:
    """Jobs that have to give way."""
    for other in fleet.settled:
        if other.resources.priority >= job.resources.priority:
            return
        if other.resources.preemptible and other.id not in fleet.leaving and goes_before(job, other, now, ageing_s):
            gives = sum(suits(device, job.resources) for device in fleet.held.get(other.id, ()))
            if gives:
                yield Leaver(other, gives)


def _needed(chosen: dict[str, Leaver], over: int) -> tuple[Leaver, ...]:
    """Without those that later ones made superfluous; `over`: how many devices too many all of them give."""
    # Of the preempted ones the most important is let off first, and all of them before those that only shrink.
    order = sorted(chosen.values(), key=lambda one: (one.keeps is not None, -one.job.resources.priority, one.job.id))
    for leaver in order:
        if leaver.gives <= over:
            over -= leaver.gives
            del chosen[leaver.job.id]
    return tuple(chosen.values())
