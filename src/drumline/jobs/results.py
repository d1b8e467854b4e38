"""What a job's folder says while it runs and once it has ended, as the store keeps it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from drumline.config.service import SchedulingConfig
from drumline.jobs.finetuning_records import FineTuned, Training, outcome
from drumline.jobs.keeper_files import exported_of, run_of
from drumline.jobs.prediction_results import (
    PredictionFacts,
    PredictionWatch,
    prediction_progress,
    prediction_result,
)
from drumline.jobs.records import Job
from drumline.jobs.store.values import are_gpus
from drumline.monitor.runs import RunFacts, RunWatch

_NAMES = ("step", "epoch", "loss", "eval_loss", "units_per_s", "unit", "mfu", "eta_s", "elapsed_s", "world_size")
_SPENT = ("energy_j", "gpu_s")

DEVICE_SECONDS = "device_seconds"
"""In a job's progress: seconds times devices of the attempts that are over, whose number may differ."""


def watch_of(job: Job, folder: Path, clock: Callable[[], float] = time.time) -> RunWatch | PredictionWatch:
    """What follows the run of a job in its folder. clock: seconds since 1970."""
    path = run_of(folder).path
    return PredictionWatch(path) if job.work.kind == "infer" else RunWatch(path, clock)


def progress_of(facts: RunFacts | PredictionFacts) -> dict[str, Any]:
    """How far a run is, as Job.progress has it: what is not known, or no number, is left out."""
    if isinstance(facts, PredictionFacts):
        return prediction_progress(facts)
    found = {name: getattr(facts, name) for name in (*_NAMES, *_SPENT)}
    found |= {"num_steps": facts.total_steps, "alerts": list(facts.alerts) or None}
    return {name: value for name, value in found.items() if value is not None and not _is_odd(value)}


def result_of(
    job: Job, folder: Path, policy: SchedulingConfig, facts: RunFacts | PredictionFacts | None = None
) -> dict[str, Any]:
    """What became of a job whose state is final, as Job.result has it. Raises OSError and ValueError as its files do.

    usage: what it took, for accounting. device_seconds counts every attempt; useful_seconds what its run trained, of
    which goodput is the share; gpu_seconds and energy_j are those that were measured, the latter None where nobody did.
    cost, there and in gpu_stats: see cost_of. facts: of its run, where they were read just now.
    """
    facts = watch_of(job, folder).look() if facts is None else facts
    if isinstance(facts, PredictionFacts):
        return _of_prediction(job, folder, policy, facts)
    training = Training(job.id, folder, job.work.model_name or "", job.user_id, job.created, ())
    told = outcome(training, facts)
    exported = exported_of(folder)
    cost = cost_of(job, device_seconds(job, job.used_s), policy.cost_per_gpu_hour, told.gpu_stats["cost"])
    return {
        "success": job.state == "succeeded",
        "model_path": str(exported) if exported.is_dir() else None,
        "training_time": told.training_time_s,
        "best_loss": _finite(told.best_loss),
        "gpu_stats": {**told.gpu_stats, "gpus": list(facts.gpus), "cost": cost},
        "steps": facts.step,
        "eval_loss": _finite(facts.eval_loss),
        "usage": _usage_of_training(job, told, cost),
    }


def _of_prediction(job: Job, folder: Path, policy: SchedulingConfig, facts: PredictionFacts) -> dict[str, Any]:
    cost = cost_of(job, device_seconds(job, job.used_s), policy.cost_per_gpu_hour, facts.spent.cost)
    useful = min(facts.busy_s / max(1, len(job.devices)), job.used_s)
    usage = _usage(job, (facts.spent.gpu_s, facts.spent.energy_j, cost), useful, None)
    return prediction_result(job, folder, facts, usage)


def no_result(job: Job, why: Exception | str) -> dict[str, Any]:
    """The same of a job whose folder cannot be read."""
    return {"success": job.state == "succeeded", "model_path": None, "best_loss": None, "problem": str(why)}


def device_seconds(job: Job, run_s: float) -> float:
    """Seconds times devices of all attempts of a job whose processes ran run_s (s) in all, the present one included.

    How many devices earlier attempts had stands in its progress; where it does not, they had as many.
    """
    earlier = _finite(job.progress.get(DEVICE_SECONDS))
    if earlier is None:
        return run_s * len(job.devices)
    return earlier + max(0.0, run_s - job.used_s) * len(job.devices)


def cost_of(job: Job, device_s: float, price_per_gpu_hour: float, recorded: float) -> float:
    """What a job's GPUs cost by the service's price; where it has none, what its run has recorded."""
    return (device_s / 3600 * price_per_gpu_hour if are_gpus(job.devices) else 0.0) or recorded


def _usage_of_training(job: Job, told: FineTuned, cost: float) -> dict[str, Any]:
    rates = [rate for record in told.training_history if (rate := _finite(record.get("mfu"))) is not None]
    spent = float(told.gpu_stats["gpu_seconds"]), told.gpu_stats["energy_j"], cost
    return _usage(job, spent, min(told.training_time_s, job.used_s), median(rates) if rates else None)


def _usage(job: Job, spent: tuple[float, float | None, float], useful: float, mfu: float | None) -> dict[str, Any]:
    """What a job took. spent: GPU seconds, joules and cost. useful: seconds that its run did what it is for."""
    gpu_s, energy_j, cost = spent
    return {
        "seconds": job.used_s,
        "device_seconds": device_seconds(job, job.used_s),
        "gpu_seconds": gpu_s,
        "energy_j": energy_j or None,
        "cost": cost,
        "useful_seconds": useful,
        "goodput": useful / job.used_s if job.used_s > 0 else None,
        "mfu": mfu,
        "queue_seconds": None if job.started is None else max(0.0, job.started - job.queued_since),
        "attempts": job.attempt,
    }


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _is_odd(value: Any) -> bool:
    """NaN and infinity are no JSON."""
    return isinstance(value, float) and not math.isfinite(value)
