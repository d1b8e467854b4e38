"""What ended runs have measured, and which settings they speak for: only what was seen, with the runs that say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from drumline.jobs.records import Job
from drumline.rundir import RunDir, read_json, read_lines

MOST_RUNS = 100
"""Newest ones that are read for one answer."""
MOST_RECORDS = 1000
"""Lines that are read of each file of a run."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run that came to its end, as its directory tells; None where it does not."""

    job_id: str
    owner: str
    model: str
    device: str
    """cuda or cpu."""
    num_devices: int
    settings: Mapping[str, Any]
    """What it ran with: parallel.kind, train.micro_batch, train.global_batch, train.precision."""
    units_per_s: float
    """Median over its log lines, but for the first, which holds the warm-up."""
    unit: str
    mfu: float | None = None
    memory_peak_bytes: int | None = None
    """Of the process that held the most."""
    shrank_to: int | None = None
    """The micro-batch that memory sufficed for in the end, where a larger one did not fit."""


@dataclass(frozen=True)
class Optimum:
    """What the runs of one model on so many devices speak for."""

    model: str
    device: str
    num_devices: int
    settings: Mapping[str, Any]
    """Of the fastest of them."""
    units_per_s: float
    unit: str
    job_id: str
    """The run that was the fastest."""
    compared: tuple[str, ...]
    """All runs that were looked at, the fastest first."""
    reason: str


def measured(job: Job, path: Path) -> MeasuredRun | None:
    """What the run directory at `path` says of a job; None where it holds no measurement of a rate."""
    run = RunDir(path)
    try:
        plan = read_json(run.plan)
        lines = list(islice(read_lines(run.metrics), MOST_RECORDS))
        events = list(islice(read_lines(run.events), MOST_RECORDS))
    except (OSError, ValueError):
        return None
    if not isinstance(plan, dict):
        return None
    trained = [record for record in lines if record.get("kind") == "train" and _is_rate(record.get("units_per_s"))]
    kept = trained[1:] or trained
    if not kept:
        return None
    peaks = [max(record["memory_peak_bytes"]) for record in kept if record.get("memory_peak_bytes")]
    usage = [float(record["mfu"]) for record in kept if _is_rate(record.get("mfu"))]
    shrank = [event.get("to") for event in events if event.get("event") == "out_of_memory"]
    smaller = next((each for each in reversed(shrank) if isinstance(each, int)), None)
    return MeasuredRun(
        job_id=job.id,
        owner=job.owner,
        model=str(job.work.model_name or job.work.model or _named(job.work.settings.get("model"))),
        device=str(plan.get("device", "cpu")),
        num_devices=max(len(plan.get("gpus") or ()), int(plan.get("world_size") or 1)),
        settings={
            "parallel.kind": plan.get("kind"),
            "train.global_batch": plan.get("global_batch"),
            "train.micro_batch": smaller or plan.get("micro_batch"),
            "train.precision": plan.get("precision"),
        },
        units_per_s=median(float(record["units_per_s"]) for record in kept),
        unit=str(kept[-1].get("unit", "samples")),
        mfu=median(usage) if usage else None,
        memory_peak_bytes=max(peaks) if peaks else None,
        shrank_to=smaller,
    )


def optima(runs: Sequence[MeasuredRun]) -> list[Optimum]:
    """For each model, number of devices and unit the settings of the fastest run, and what it was compared with.

    Pure. The sizes of what was learned may differ between the runs, which the reason says.
    """
    groups: dict[tuple[str, str, int, str], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[run.model, run.device, run.num_devices, run.unit].append(run)
    found = []
    for (model, device, number, unit), members in sorted(groups.items()):
        members.sort(key=lambda run: -run.units_per_s)
        best = members[0]
        ids = tuple(run.job_id for run in members)
        found.append(
            Optimum(model, device, number, best.settings, best.units_per_s, unit, best.job_id, ids, _why(members))
        )
    return found


def _why(members: Sequence[MeasuredRun]) -> str:
    best = members[0]
    others = [run for run in members if run.settings != best.settings]
    said = f"{best.job_id} made {best.units_per_s:.4g} {best.unit}/s"
    if others:
        next_best = others[0]
        gain = best.units_per_s / next_best.units_per_s - 1
        said += (
            f", {gain:.0%} more than the best run with other settings ({next_best.job_id}, "
            f"{next_best.units_per_s:.4g} {best.unit}/s); their rows may have been of other lengths"
        )
    else:
        said += "; no run with other settings has been measured, so nothing says that others would be slower"
    if best.shrank_to is not None:
        said += f"; memory sufficed for micro-batches of {best.shrank_to}, not for larger ones"
    return said


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _named(model: Any) -> str:
    found = [model.get(key) for key in ("path", "name", "kind")] if isinstance(model, Mapping) else []
    return str(next((each for each in found if each), "a model"))
