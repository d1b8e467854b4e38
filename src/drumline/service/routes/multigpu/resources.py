"""What jobs share: who has what, who waits, and what can be given back or used better."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

from fastapi import APIRouter

from drumline.errors import Conflict, Forbidden, NotFound
from drumline.hardware.occupants import occupants
from drumline.jobs.records import ACTIVE_STATES, Job, Lease
from drumline.jobs.requests import Who
from drumline.jobs.silence import silent_jobs
from drumline.jobs.store import JobFilter
from drumline.plan.devices import count
from drumline.service.cleanup import Cleaner
from drumline.service.measured_runs import MOST_RUNS, measured, optima
from drumline.service.problems import responses
from drumline.service.routes.multigpu.gpu_state import MachineState, may_see, stats_of, told_to
from drumline.service.routes.multigpu.looks import machine_state, told_of_those
from drumline.service.routes.multigpu.requests import ManageRequest
from drumline.service.routes.multigpu.resource_views import (
    CleanupView,
    DeviceView,
    DiskView,
    LeaseView,
    ManageView,
    MonitorView,
    OptimizeView,
    OptimumView,
    QueuedView,
    QueueView,
    ResourcesStatusView,
    RunningView,
    StrangerView,
)
from drumline.service.state import Service, TheService, TheWho
from drumline.service.views import finite, timestamp

PAGE = 200


def add(routes: APIRouter) -> None:
    """Add these paths."""

    @routes.get("/resources/status", operation_id="resources_status")
    def status(service: TheService, who: TheWho) -> ResourcesStatusView:
        """Devices, leases, the queue with reasons, strangers on GPUs, room on the disk."""
        return status_of(service, machine_state(service, who))

    @routes.post("/resources/manage", operation_id="manage_resources", responses=responses(404, 409))
    def manage(body: ManageRequest, service: TheService, who: TheWho) -> ManageView:
        """Give back what nobody uses, see what is in use, or find the settings that measured runs speak for."""
        if body.action == "cleanup":
            return ManageView(action=body.action, cleanup=clean(service, who, body.give_up))
        if body.action == "monitor":
            return ManageView(action=body.action, monitor=monitor(service, who, body.gpu_ids))
        return ManageView(action=body.action, optimize=optimize(service, who, body.model_name))


def status_of(service: Service, state: MachineState) -> ResourcesStatusView:
    """Everything, as far as this caller may see it."""
    who, inventory = state.who, state.inventory
    indexes = {sample.gpu.uuid: sample.gpu.index for sample in state.look.snapshot.gpus}
    owner = None if may_see(who, "") else who.owner
    counts = service.store.jobs.counts(owner)
    return ResourcesStatusView(
        node=inventory.node,
        has_gpus=inventory.has_gpus,
        devices=[
            DeviceView(
                id=device.id,
                gpu_id=indexes.get(device.id),
                free_memory_bytes=device.memory_bytes,
                group=device.group,
                usable=device.unusable is None,
                unusable_because=told_to(who, device.unusable),
                held_by=state.holder(device.id),
            )
            for device in inventory.devices
        ],
        leases=[_lease(who, state.leases[device], state.jobs) for device in sorted(state.leases)]
        + _run_out(service, who),
        jobs={str(name): number for name, number in sorted(counts.items())},
        queue=queue_of(service, who),
        strangers=[
            StrangerView(gpu_id=sample.gpu.index, uuid=sample.gpu.uuid, message=told_to(who, told) or "")
            for sample in state.look.snapshot.gpus
            if sample.gpu.uuid not in state.leases and (told := occupants(sample)) is not None
        ],
        disk=_disk(service),
        gpu_source=state.look.snapshot.source,
        late=state.look.late,
    )


def queue_of(service: Service, who: Who) -> QueueView:
    """Who waits, with the reasons."""
    now, queue = time.time(), service.board.queue.jobs()
    seen = ((position, job) for position, job in enumerate(queue, 1) if may_see(who, job.owner))
    return QueueView(
        total=len(queue),
        items=[
            QueuedView(
                id=job.id,
                position=position,
                name=job.name,
                owner=job.owner,
                priority=job.resources.priority,
                devices=job.resources.devices,
                waits_for=job.waits_for or "the scheduler has not looked at it yet",
                queued_s=max(0.0, now - (job.queued_since or job.created)),
            )
            for position, job in islice(seen, PAGE)
        ],
    )


def clean(service: Service, who: Who, nodes: Sequence[str] | Literal["all"] = ()) -> CleanupView:
    """Give back what nobody uses: of one's own jobs, of an admin everybody's, and also of other machines.

    nodes: those that are given up. Raises Forbidden, and Conflict for one that has not gone silent.
    """
    if who.role == "viewer":
        raise Forbidden("a viewer's key changes nothing", "use a key of role user")
    whole = who.role == "admin"
    lost = _give_up(service, who, nodes) if nodes else ()
    cleaner = Cleaner(
        service.store,
        service.config.data_dir.expanduser().absolute(),
        service.node,
        lambda job: whole or job.owner == who.owner,
        whole=whole,
    )
    done = cleaner.run()
    told = f"{len(done.leases)} leases, {len(done.processes)} processes, {done.freed_bytes} bytes"
    service.board.note("resources.cleanup", who, told)
    if service.supervisor is not None:
        service.supervisor.wake()
    return CleanupView(
        leases_released=done.leases,
        processes_ended=done.processes,
        processes_stuck=done.stuck,
        removed=done.folders,
        freed_bytes=done.freed_bytes,
        jobs_lost=[job.id for job in lost],
        notes=done.notes,
    )


def _give_up(service: Service, who: Who, nodes: Sequence[str] | Literal["all"]) -> tuple[Job, ...]:
    if who.role != "admin":
        raise Forbidden("to give up a machine is an admin's matter", "ask an admin, or cancel your own jobs there")
    if nodes == "all":
        return service.board.give_up(lambda job: True, who)
    silent = {job.node for job in silent_jobs(service.store, service.node)}
    if wrong := sorted(set(nodes) - silent):
        those = f"those that do not answer are {', '.join(sorted(silent))}" if silent else "all of them answer"
        raise Conflict(f"{', '.join(wrong)[:200]}: no machine that has left jobs alone", those)
    return service.board.give_up(lambda job: job.node in nodes, who)


def monitor(service: Service, who: Who, gpu_ids: Sequence[int | str]) -> MonitorView:
    """What is in use now. Raises NotFound for a GPU that is not there."""
    state = machine_state(service, who)
    stats = stats_of(state)
    if gpu_ids:
        found = {str(name): state.look.find(str(name)) for name in gpu_ids}
        missing = [name for name, sample in found.items() if sample is None]
        if missing:
            raise NotFound(f"there is no GPU {', '.join(missing)[:200]}", told_of_those(state))
        wanted = {sample.gpu.uuid for sample in found.values() if sample is not None}
        stats = stats.model_copy(update={"gpu_info": [gpu for gpu in stats.gpu_info if gpu.uuid in wanted]})
    page = service.board.find(JobFilter(states=ACTIVE_STATES), who, limit=PAGE)
    return MonitorView(gpus=stats, running=[_running(job) for job in page.items])


def optimize(service: Service, who: Who, model_name: str | None) -> OptimizeView:
    """What ended runs have measured, of those that one may see."""
    page = service.board.find(JobFilter(states=frozenset({"succeeded"}), text=model_name), who, limit=MOST_RUNS)
    jobs = [job for job in page.items if model_name is None or job.work.model_name == model_name]
    found = [measured(job, service.board.folder(job) / "run") for job in jobs]
    runs = [run for run in found if run is not None]
    best = optima(runs)
    message = (
        f"{count(len(runs), 'run')} measured this" if runs else "no run has been measured yet: nothing is recommended"
    )
    return OptimizeView(
        recommendations=[
            OptimumView(
                model=each.model,
                device=each.device,
                num_devices=each.num_devices,
                settings=dict(each.settings),
                units_per_s=each.units_per_s,
                unit=each.unit,
                measured_by=each.job_id,
                compared=list(each.compared),
                reason=each.reason,
            )
            for each in best
        ],
        runs=len(runs),
        message=message,
    )


def _lease(who: Who, lease: Lease, jobs: Mapping[str, Job]) -> LeaseView:
    job = jobs.get(lease.job_id)
    is_told = job is not None and may_see(who, job.owner)
    return LeaseView(
        node=lease.node,
        device=lease.device,
        job_id=lease.job_id if is_told else None,
        owner=job.owner if job is not None and is_told else None,
        since=timestamp(lease.since) or "",
        expires=timestamp(lease.expires) or "",
        run_out=lease.expires <= time.time(),
    )


def _run_out(service: Service, who: Who) -> list[LeaseView]:
    """Leases of other machines, which do not answer."""
    jobs = {job.id: job for job in silent_jobs(service.store, service.node)}
    leases = service.store.leases.all() if jobs else ()
    return [_lease(who, lease, jobs) for lease in leases if lease.job_id in jobs]


def _running(job: Job) -> RunningView:
    told = finite(job.progress)
    names = ("step", "num_steps", "loss", "units_per_s", "unit", "mfu", "eta_s")
    return RunningView(
        id=job.id, name=job.name, state=job.state, devices=list(job.devices), **{name: told.get(name) for name in names}
    )


def _disk(service: Service) -> DiskView:
    try:
        found = shutil.disk_usage(service.config.data_dir.expanduser().absolute())
    except OSError:
        return DiskView()
    return DiskView(total_bytes=found.total, free_bytes=found.free)
