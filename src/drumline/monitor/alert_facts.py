"""The values that alerts look at, from samples, verdicts, XIDs and runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from drumline.hardware.health import Finding
from drumline.hardware.records import GpuSample
from drumline.hardware.sample import HARMLESS, POWER_LIMIT
from drumline.hardware.xids import Xid, meaning
from drumline.monitor.runs import RunFacts

IDLE_BELOW = 0.01
"""Share of the driver's window in which a kernel ran: what NVML rounds to 0%."""
LEAST_ROOM_BYTES = 1 << 30
"""What a checkpoint takes at least, of a run that has none yet."""

_WATCHED_OTHERWISE = ("xid_", "throttled_")
"""Beginnings of the codes of findings for which there are rules of their own: one fault raises one alarm."""
_FOLLOWS_XID = ("lost", "recovery_action", "ecc_uncorrected", "rows_failed", "nvlink_down", "nvlink_errors")
"""Codes of findings that say again what an XID has said."""
_STANDING = ("ecc_uncorrected_ever", "pages_retired", "nvlink_down")
"""Codes of findings that, as warnings, are a GPU's lasting state: an alarm about them would never end."""


def gpu_facts(
    samples: Sequence[GpuSample], findings: Iterable[Finding] | None = (), xids: Iterable[Xid] = (), *, has_work: bool
) -> dict[str, float]:
    """Of one GPU, by the names in METRICS; samples: those of the last minute, oldest first, at least one.

    has_work: whether a run that has begun to train is on it.
    """
    last = samples[-1]
    use = _mean(samples, lambda sample: sample.utilization)
    active = _mean(samples, lambda sample: None if sample.pipes is None else sample.pipes.sm_active)
    temperature = _mean(samples, lambda sample: sample.temperature_c)
    facts = {
        "temperature_c": temperature,
        "memory_temperature_c": _mean(samples, lambda sample: sample.memory_temperature_c),
        "utilization": use,
        "sm_active": active,
        "power_w": _mean(samples, lambda sample: sample.power_w),
        "throttled": _mean(samples, _is_slowed),
        "power_capped": _mean(samples, lambda sample: _slowed_by(sample, lambda cause: cause == POWER_LIMIT)),
    }
    if temperature is not None and last.slowdown_temperature_c is not None:
        facts["heat_margin_c"] = last.slowdown_temperature_c - temperature
    used, free = last.memory_used_bytes, last.memory_free_bytes
    if used is not None and free is not None and used + free:
        # Not of the whole: what the driver keeps for itself, a larger share of a small card, is neither.
        facts["memory_share"] = used / (used + free)
    if has_work and use is not None:
        idle = use < IDLE_BELOW
        facts["idle"] = float(idle)
        facts["use"] = None if idle else use if active is None else active
    known = {name: value for name, value in facts.items() if value is not None}
    return known | health_facts(findings, xids)


def health_facts(findings: Iterable[Finding] | None, xids: Iterable[Xid]) -> dict[str, float]:
    """How many findings and XIDs of each weight a GPU has, also one that cannot be read any more.

    findings: None where they are not known.
    """
    weights = [meaning(xid.code, xid.text).status for xid in xids]
    told = {"xid_failures": float(weights.count("fail")), "xid_warnings": float(weights.count("warn"))}
    if findings is None:
        return told
    others = [each for each in findings if not each.code.startswith(_WATCHED_OTHERWISE)]
    if "fail" in weights:
        others = [each for each in others if each.code not in _FOLLOWS_XID]
    failures = [each for each in others if each.status == "fail"]
    warnings = [each for each in others if each.status == "warn" and each.code not in _STANDING]
    return told | {"health_failures": float(len(failures)), "health_warnings": float(len(warnings))}


def run_facts(run: RunFacts, free_bytes: int | None = None, checkpoint_bytes: int = 0) -> dict[str, float]:
    """Of one run. free_bytes: on its disk; checkpoint_bytes: what its newest checkpoint takes."""
    facts: dict[str, float | None] = {
        "step_age_s": run.step_age_s,
        "overdue_s": run.overdue_s,
        "loss_not_finite": None if run.loss is None else float(not math.isfinite(run.loss)),
        "loss_rise": run.loss_rise,
        "failed": float(run.state in ("failed", "killed")),
        "energy_j": run.energy_j,
        "cost": run.cost,
    }
    if free_bytes is not None:
        facts["disk_room"] = free_bytes / max(checkpoint_bytes, LEAST_ROOM_BYTES)
    return {name: value for name, value in facts.items() if value is not None}


def _mean(samples: Sequence[GpuSample], value: Callable[[GpuSample], float | None]) -> float | None:
    known = [each for sample in samples if (each := value(sample)) is not None]
    return sum(known) / len(known) if known else None


def _is_slowed(sample: GpuSample) -> float | None:
    return _slowed_by(sample, lambda cause: cause not in HARMLESS)


def _slowed_by(sample: GpuSample, counts: Callable[[str], bool]) -> float | None:
    return None if sample.throttled_by is None else float(any(map(counts, sample.throttled_by)))
