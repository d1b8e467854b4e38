"""What is there and how it is: health, all GPUs, one GPU."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Path

from drumline.errors import NotFound
from drumline.jobs.defaults import GPUConfig, limited
from drumline.jobs.records import Inventory
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.silence import silent_jobs
from drumline.jobs.store import JobFilter
from drumline.service import checks
from drumline.service.problems import responses
from drumline.service.routes.multigpu.asking import Method, job_request
from drumline.service.routes.multigpu.gpu_state import MachineState, gpu_stats, stats_of
from drumline.service.routes.multigpu.gpu_views import Check, GpuStats, MachineHealth, StatsView
from drumline.service.routes.multigpu.requests import TrainingRequest
from drumline.service.routes.multigpu.settings import current
from drumline.service.state import Service, TheService, TheWho

GpuName = Annotated[
    str, Path(max_length=100, pattern=r"^[A-Za-z0-9/-]+$", description="Index as nvidia-smi shows it, or UUID.")
]


def add(routes: APIRouter) -> None:
    """Add these paths."""

    @routes.get("/health", operation_id="multigpu_health")
    def health(service: TheService) -> MachineHealth:
        """Whether the service does its work; each part is a check that says what is wrong."""
        return health_of(service)

    @routes.get("/stats", operation_id="multigpu_stats")
    def stats(service: TheService, who: TheWho) -> StatsView:
        """All GPUs: use, memory, temperature, power, health, who has them. Without GPU the lists are empty."""
        return stats_of(machine_state(service, who))

    @routes.get("/gpu/{gpu_id}/stats", operation_id="multigpu_gpu_stats", responses=responses(404))
    def one_gpu(gpu_id: GpuName, service: TheService, who: TheWho) -> GpuStats:
        """One GPU, by index or UUID."""
        state = machine_state(service, who)
        sample = state.look.find(gpu_id)
        if sample is None:
            raise NotFound(f"there is no GPU {gpu_id[:100]}", told_of_those(state))
        return gpu_stats(state, sample)


def machine_state(service: Service, who: Who) -> MachineState:
    """Everything that is known of the machine now; never later than limits.gpu_operation_s."""
    look, inventory = service.machine.look(), inventory_of(service)
    leases = {lease.device: lease for lease in service.store.leases.all(inventory.node)}
    jobs = {}
    for job_id in {lease.job_id for lease in leases.values()}:
        job = service.store.jobs.get(job_id)
        if job is not None:
            jobs[job_id] = job
    return MachineState(look, inventory, leases, jobs, who)


def inventory_of(service: Service) -> Inventory:
    """The devices as jobs may be given them: those that POST /multigpu/config leaves."""
    return limited(service.devices(), current(service).config.gpu_ids)


def asked_for(
    service: Service, body: TrainingRequest, method: Method, defaults: GPUConfig, *, complete: bool = True
) -> JobRequest:
    """The job that a body asks for on this machine; see job_request()."""
    return job_request(
        body,
        method,
        defaults,
        has_gpus=has_gpus(service),
        indexes=lambda: service.machine.look().indexes(),
        complete=complete,
    )


def has_gpus(service: Service) -> bool:
    """Whether the machine has GPUs; just after the start this waits for the first look, at most as long as it may."""
    if service.devices().time == 0:
        service.devices.wait(service.config.limits.gpu_operation_s)
    return service.devices().has_gpus


def health_of(service: Service) -> MachineHealth:
    """All checks."""
    look, inventory, now = service.machine.look(), service.devices(), time.time()
    store = checks.check_store(lambda: service.store.jobs.find(JobFilter(), None, 1))
    found = [store]
    leases = {}
    if store.status != "failing":
        leases = {lease.device: lease for lease in service.store.leases.all(inventory.node)}
        beats = [beat.at for beat in service.store.services.alive(inventory.node)]
        if service.supervisor is not None:
            beats.append(service.began)  # its first sign of life may be on its way
        found.append(checks.check_supervisor(max(beats, default=None), now))
        silent = Counter(job.node for job in silent_jobs(service.store, service.node))
        found.append(checks.check_nodes(silent))
    found += [
        checks.check_disk(service.config.data_dir.expanduser().absolute()),
        checks.check_driver(look),
        checks.check_gpus(look, inventory, leases),
    ]
    return MachineHealth(
        status=checks.gravest(found),
        checks=[Check(name=each.name, status=each.status, message=each.message, fix=each.fix) for each in found],
        gpus=sum(sample.gpu.parent is None for sample in look.snapshot.gpus),
        usable_gpus=sum(device.unusable is None for device in inventory.devices) if inventory.has_gpus else 0,
        degraded=[each.name for each in found if each.status != "ok"],
    )


def told_of_those(state: MachineState) -> str:
    """Which GPUs there are, for one who asked for another."""
    gpus = [sample.gpu for sample in state.look.snapshot.gpus]
    if not gpus:
        return f"this machine shows none ({state.look.snapshot.source})"
    return "choose from " + ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
