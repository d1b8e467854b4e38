"""From what the driver, the scheduler and the store say of GPUs to what is answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drumline.hardware.occupants import occupants
from drumline.hardware.records import GpuSample
from drumline.jobs.records import Device, Inventory, Job, Lease
from drumline.jobs.requests import Who
from drumline.service.checks import TAKEN
from drumline.service.machine import MachineLook
from drumline.service.routes.multigpu.gpu_views import (
    FindingView,
    GpuHealth,
    GpuProcessView,
    GpuStats,
    Holder,
    StatsView,
)
from drumline.service.views import timestamp


@dataclass(frozen=True)
class MachineState:
    """Everything that is known of the machine, for one who asks."""

    look: MachineLook
    inventory: Inventory
    leases: Mapping[str, Lease]
    """By device."""
    jobs: Mapping[str, Job]
    """Those that hold leases, by id."""
    who: Who

    def holder(self, device: str) -> Holder | None:
        """The job that holds a device; of one that `who` may not see only that there is one."""
        lease = self.leases.get(device)
        if lease is None:
            return None
        job = self.jobs.get(lease.job_id)
        if job is None or not may_see(self.who, job.owner):
            return Holder(kind="job", since=timestamp(lease.since), message="held by a job of another owner")
        return Holder(
            kind="job", job_id=job.id, owner=job.owner, since=timestamp(lease.since), message=f"held by {job.id}"
        )

    def device(self, device: str) -> Device | None:
        """As the scheduler sees it; None where it does not."""
        return next((each for each in self.inventory.devices if each.id == device), None)

    def free(self) -> list[Device]:
        """Devices that a job could be given now."""
        return [each for each in self.inventory.devices if each.unusable is None and each.id not in self.leases]


def may_see(who: Who, owner: str) -> bool:
    """Whether somebody may know of another's job."""
    return who.role == "admin" or who.owner in (owner, "*")


def told_to(who: Who, reason: str | None) -> str | None:
    """Why a GPU is not free; whose process is on it is for those to know who could see it on the machine."""
    if reason is None or who.role == "admin" or not reason.startswith(("taken", "claimed")):
        return reason
    return TAKEN


def stats_of(state: MachineState) -> StatsView:
    """All GPUs of the machine."""
    gpus = [gpu_stats(state, sample) for sample in state.look.snapshot.gpus]
    whole = [sample for sample in state.look.snapshot.gpus if sample.gpu.parent is None]
    return StatsView(
        available_gpus=sorted({gpu.gpu_id for gpu in gpus if gpu.available}),
        gpu_info=gpus,
        gpu_count=len(whole),
        gpu_source=state.look.snapshot.source,
        late=state.look.late,
        total_memory_bytes=_whole(sample.gpu.memory_bytes for sample in whole),
        used_memory_bytes=_whole(sample.memory_used_bytes for sample in whole),
        power_w=_sum(sample.power_w for sample in whole),
        devices_free=len(state.free()),
        devices_held=sum(device.id in state.leases for device in state.inventory.devices),
    )


def gpu_stats(state: MachineState, sample: GpuSample) -> GpuStats:
    """One GPU."""
    gpu, device = sample.gpu, state.device(sample.gpu.uuid)
    holder = state.holder(gpu.uuid)
    why_not = told_to(state.who, _why_not(device, holder, state.look.late))
    if holder is None and (stranger := told_to(state.who, occupants(sample))) is not None:
        holder = Holder(kind="stranger", message=stranger)
    activity = state.look.activity(sample)
    return GpuStats(
        gpu_id=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        gpu_utilization=None if sample.utilization is None else round(100 * sample.utilization, 1),
        memory_utilization=_percent(sample.memory_used_bytes, gpu.memory_bytes),
        memory_used_bytes=sample.memory_used_bytes,
        memory_free_bytes=sample.memory_free_bytes,
        memory_total_bytes=gpu.memory_bytes,
        temperature_c=sample.temperature_c,
        slowdown_temperature_c=sample.slowdown_temperature_c,
        power_w=sample.power_w,
        power_limit_w=sample.power_limit_w,
        fan=sample.fan,
        sm_clock_mhz=sample.sm_clock_mhz,
        throttled_by=None if sample.throttled_by is None else list(sample.throttled_by),
        activity=activity.kind,
        activity_reason=activity.reason,
        health=health_of(state.look, sample),
        available=why_not is None,
        unavailable_because=why_not,
        held_by=holder,
        processes=_processes(state.who, sample),
        sampled_at=timestamp(sample.time) or "",
    )


def health_of(look: MachineLook, sample: GpuSample) -> GpuHealth:
    """The verdict on a GPU."""
    verdict = look.health(sample)
    if verdict is None:
        return GpuHealth(status="unknown", reason="the driver gave no counters")
    findings = [
        FindingView(code=each.code, status=each.status, message=each.message, action=each.action)
        for each in verdict.findings
    ]
    return GpuHealth(status=verdict.status, reason=verdict.reason, findings=findings)


def _why_not(device: Device | None, holder: Holder | None, late: str | None) -> str | None:
    """Why a job cannot be given it now."""
    if holder is not None:
        return holder.message
    if device is None:
        return late or "the scheduler does not have it: CUDA_VISIBLE_DEVICES of the service hides it, or it is new"
    return device.unusable


def _processes(who: Who, sample: GpuSample) -> list[GpuProcessView] | None:
    if who.role != "admin" or sample.processes is None:
        return None
    return [
        GpuProcessView(
            pid=each.pid, kind=each.kind, name=each.name, user=each.user, memory_bytes=each.memory_bytes, ours=each.ours
        )
        for each in sample.processes
    ]


def _percent(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else round(100 * part / whole, 1)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(values: Iterable[int | None]) -> int | None:
    total = _sum(values)
    return None if total is None else int(total)
