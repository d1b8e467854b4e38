"""What a job's folder says while it runs and once it has ended, as the store keeps it."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

from drumline.config.service import SchedulingConfig
from drumline.jobs.finetuning_records import FineTuned, Training, outcome
from drumline.jobs.keeper_files import exported_of, run_of
from drumline.jobs.records import Job
from drumline.monitor.runs import RunFacts, RunWatch

_NAMES = ("step", "epoch", "loss", "eval_loss", "units_per_s", "unit", "mfu", "eta_s", "elapsed_s", "world_size")
_SPENT = ("energy_j", "gpu_s")

DEVICE_SECONDS = "device_seconds"
"""In a job's progress: seconds times devices of the attempts that are over, whose number may differ."""


def progress_of(facts: RunFacts) -> dict[str, Any]:
    """How far a run is, as Job.progress has it: what is not known, or no number, is left out."""
    found = {name: getattr(facts, name) for name in (*_NAMES, *_SPENT)}
    found |= {"num_steps": facts.total_steps, "alerts": list(facts.alerts) or None}
    return {name: value for name, value in found.items() if value is not None and not _is_odd(value)}


def result_of(job: Job, folder: Path, policy: SchedulingConfig, facts: RunFacts | None = None) -> dict[str, Any]:
    """What became of a job whose state is final, as Job.result has it. Raises OSError and ValueError as its files do.

    usage: what it took, for accounting. device_seconds counts every attempt; useful_seconds what its run trained, of
    which goodput is the share; gpu_seconds and energy_j are those that were measured. cost, there and in gpu_stats: see
    cost_of. facts: of its run, where they were read just now.
    """
    training = Training(job.id, folder, job.work.model_name or "", job.user_id, job.created, ())
    facts = RunWatch(run_of(folder).path).look() if facts is None else facts
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
        "usage": _usage(job, told, cost),
    }


def no_result(job: Job, why: Exception) -> dict[str, Any]:
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
    is_gpu = any(not device.startswith("cpu:") for device in job.devices)
    return (device_s / 3600 * price_per_gpu_hour if is_gpu else 0.0) or recorded


def _usage(job: Job, told: FineTuned, cost: float) -> dict[str, Any]:
    gpu_s = float(told.gpu_stats["gpu_seconds"])
    useful = min(told.training_time_s, job.used_s)
    rates = [rate for record in told.training_history if (rate := _finite(record.get("mfu"))) is not None]
    return {
        "seconds": job.used_s,
        "device_seconds": device_seconds(job, job.used_s),
        "gpu_seconds": gpu_s,
        "energy_j": told.gpu_stats["energy_j"],
        "cost": cost,
        "useful_seconds": useful,
        "goodput": useful / job.used_s if job.used_s > 0 else None,
        "mfu": median(rates) if rates else None,
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
