"""Simulated GPUs behind a service: what the driver would say of them, and what the scheduler sees."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Snapshot
from drumline.jobs.records import Device, Inventory
from drumline.service.machine import Machine
from drumline.service.state import Service

GIB = 1 << 30
UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222", "GPU-cccc3333")
SICK = Verdict(UUIDS[2], "fail", (Finding("rows_failed", "fail", "a row cannot be replaced", "replace it", "NVIDIA"),))
STRANGER = GpuProcess(4711, "compute", 8 * GIB, "python secret_project.py", "mallory")


def samples(*, stranger: bool = False) -> tuple[GpuSample, ...]:
    """Three GPUs; with a stranger's process on the second where that is asked for."""
    return tuple(
        GpuSample(
            Gpu(uuid, "NVIDIA H100 80GB HBM3", index, 80 * GIB, (9, 0)),
            time=1_800_000_000.0,
            utilization=0.25,
            memory_used_bytes=4 * GIB,
            memory_free_bytes=76 * GIB,
            temperature_c=50.0,
            power_w=300.0,
            power_limit_w=700.0,
            processes=(STRANGER,) if stranger and index == 1 else (),
        )
        for index, uuid in enumerate(UUIDS)
    )


def put_gpus(
    service: Service,
    *,
    stranger: bool = False,
    verdicts: Mapping[str, Verdict] | None = None,
    unusable: Mapping[str, str] | None = None,
) -> None:
    """Let a service believe that its machine has three GPUs."""
    snapshot = Snapshot(1_800_000_000.0, "nvml 580 (simulated)", samples(stranger=stranger))
    reasons = {} if unusable is None else unusable
    devices = tuple(Device(uuid, 60 * GIB, reasons.get(uuid)) for uuid in UUIDS)
    service.machine.close()
    found = {uuid: Verdict(uuid, "ok") for uuid in UUIDS} if verdicts is None else verdicts
    service.machine = Machine(5.0, source=lambda: snapshot, verdicts=lambda: found)
    service.devices.close()
    service.devices._last = Inventory(service.node, 1e12, devices, has_gpus=True)
