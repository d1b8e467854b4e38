"""What was recorded of a run's GPUs, as its report has it. Reads records only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.track.units import as_finite

Record = Mapping[str, Any]

SHORT_UUID = 12
"""Letters of a UUID that tell GPUs apart for people, `GPU-` included."""


@dataclass(frozen=True)
class Spent:
    """What all machines of a run have taken together, over all attempts."""

    energy_j: float
    gpu_s: float
    cost: float


@dataclass(frozen=True)
class GpuSummary:
    """One GPU over the whole record; means are over time, None: nobody told."""

    label: str
    node: str
    utilization: float | None
    sm_active: float | None
    tensor_active: float | None
    memory_bytes: float | None
    """The most."""
    power_w: float | None
    temperature_c: float | None
    """The highest."""


@dataclass(frozen=True)
class PhaseSummary:
    """All GPUs in one phase of a run; a record counts for the phase that took most of its time."""

    phase: str
    seconds: float
    """On the clock of the first machine."""
    utilization: float | None
    sm_active: float | None
    power_w: float | None
    """Of one GPU, as are the two above: means over GPUs and time."""


def spent_by(gpus: Sequence[Record]) -> Spent | None:
    """From the last record of each machine, which count on; None where there is none."""
    last = {str(record.get("node", "")): record for record in gpus}
    if not last:
        return None
    sums = (sum(as_finite(record.get(key)) or 0.0 for record in last.values()) for key in ("energy_j", "gpu_s", "cost"))
    return Spent(*sums)


def uuids_of(gpus: Sequence[Record]) -> list[tuple[str, str]]:
    """(node, UUID) of each GPU, in the order in which they appear."""
    nodes: dict[str, str] = {}
    for record in gpus:
        for uuid in fields_of(record):
            nodes.setdefault(uuid, str(record.get("node", "")))
    return [(node, uuid) for uuid, node in nodes.items()]


def fields_of(record: Record) -> Mapping[str, Record]:
    """What a record tells of each GPU, by UUID; empty for one that is broken."""
    found = record.get("gpus")
    return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}


def values_of(gpus: Sequence[Record], uuid: str, field: str, what: str = "mean") -> Iterator[tuple[float, float]]:
    """(seconds on the clock of the steps, value) of each record that has it; what: mean, min, max or p95."""
    for record in gpus:
        statistics = fields_of(record).get(uuid, {}).get(field)
        value = as_finite(statistics.get(what)) if isinstance(statistics, dict) else None
        elapsed = as_finite(record.get("elapsed_s"))
        if value is not None and elapsed is not None:
            yield elapsed, value


def labels_of(gpus: Sequence[Record], env: Record) -> dict[str, str]:
    """What to call each GPU, by UUID: its index where env.json lists it, else the beginning of its UUID.

    With several machines the name of its machine stands before it.
    """
    known = {
        str(gpu.get("uuid")): f"GPU {gpu.get('index')}"
        for gpu in (env.get("gpus") if isinstance(env.get("gpus"), list) else None) or []
        if isinstance(gpu, dict)
    }
    found = uuids_of(gpus)
    several = len({node for node, _ in found}) > 1
    return {uuid: (f"{node} " if several else "") + known.get(uuid, uuid[:SHORT_UUID]) for node, uuid in found}


def phases_of(gpus: Sequence[Record]) -> list[PhaseSummary]:
    """A line a phase, in the order in which they came."""
    first = next((record.get("node") for record in gpus), None)
    found = []
    for phase in dict.fromkeys(str(record["phase"]) for record in gpus if record.get("phase")):
        inside = [record for record in gpus if record.get("phase") == phase]
        seconds = sum(as_finite(record.get("seconds")) or 0.0 for record in inside if record.get("node") == first)
        means = (_mean_over_time(inside, field) for field in ("utilization", "sm_active", "power_w"))
        found.append(PhaseSummary(phase, seconds, *means))
    return found


def _mean_over_time(records: Sequence[Record], field: str) -> float | None:
    total = weight = 0.0
    for record in records:
        seconds = as_finite(record.get("seconds")) or 0.0
        for uuid in fields_of(record):
            for _, value in values_of([record], uuid, field):
                total, weight = total + seconds * value, weight + seconds
    return total / weight if weight else None


def summaries_of(gpus: Sequence[Record], env: Record) -> list[GpuSummary]:
    """A line a GPU."""
    labels = labels_of(gpus, env)

    def mean(uuid: str, field: str) -> float | None:
        values = [value for _, value in values_of(gpus, uuid, field)]
        return sum(values) / len(values) if values else None

    def most(uuid: str, field: str) -> float | None:
        return max((value for _, value in values_of(gpus, uuid, field, "max")), default=None)

    return [
        GpuSummary(
            label=labels[uuid],
            node=node,
            utilization=mean(uuid, "utilization"),
            sm_active=mean(uuid, "sm_active"),
            tensor_active=mean(uuid, "tensor_active"),
            memory_bytes=most(uuid, "memory_used_bytes"),
            power_w=mean(uuid, "power_w"),
            temperature_c=most(uuid, "temperature_c"),
        )
        for node, uuid in uuids_of(gpus)
    ]
