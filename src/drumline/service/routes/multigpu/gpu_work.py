"""Test the GPUs by making them work, and say how they are used best."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter

from drumline.errors import Busy, Conflict, Forbidden, NotFound
from drumline.hardware.active_tests import run_tests
from drumline.hardware.host import read_host
from drumline.jobs.records import Device
from drumline.jobs.requests import Who
from drumline.plan.devices import count
from drumline.service.problems import responses
from drumline.service.recommendations import recommend
from drumline.service.routes.multigpu.gpu_state import MachineState, gpu_stats, told_to
from drumline.service.routes.multigpu.gpu_views import GpuAdvice, GpuTestView, RecommendationsView, TestView
from drumline.service.routes.multigpu.looks import machine_state, told_of_those
from drumline.service.routes.multigpu.requests import GpuTestRequest
from drumline.service.routes.multigpu.settings import current
from drumline.service.state import Service, TheService, TheWho

_one_test = threading.Lock()
"""Two tests at once would each find the other's GPUs taken, and hold two threads."""


def add(routes: APIRouter) -> None:
    """Add these paths."""

    @routes.post("/gpu/test", operation_id="test_gpus", responses=responses(404, 409))
    def test_gpus(service: TheService, who: TheWho, body: GpuTestRequest | None = None) -> GpuTestView:
        """Memory, products, copies and an all-reduce on GPUs that nobody uses, with a limit of time."""
        return tested(service, who, GpuTestRequest() if body is None else body)

    @routes.get("/gpu/recommendations", operation_id="gpu_recommendations")
    def recommendations(service: TheService, who: TheWho) -> RecommendationsView:
        """What to do about each GPU, and how trainings use this machine best, each with its reason."""
        return recommended(service, who)


def tested(service: Service, who: Who, body: GpuTestRequest) -> GpuTestView:
    """Test what may be tested. Raises NotFound, Conflict for a GPU that a job holds, Busy while another test runs."""
    if who.role == "viewer":
        raise Forbidden("a viewer's key makes no GPU work", "use a key of role user")
    state = machine_state(service, who)
    chosen, skipped = choose(state, body.gpu_ids)
    if not chosen:
        why = "no GPU is free to be tested" if state.look.snapshot.gpus else "this machine has no GPU to test"
        message = f"{why} ({state.look.late or state.look.snapshot.source})"
        return GpuTestView(success=True, tested=[], skipped=skipped, results=[], message=message, seconds=0.0)
    limit_s = min(body.limit_s or service.config.limits.gpu_test_s, service.config.limits.gpu_test_s)
    if not _one_test.acquire(blocking=False):
        raise Busy("another test of GPUs is under way", "wait for its end")
    began = time.monotonic()
    try:
        results = run_tests(chosen, limit_s)
    finally:
        _one_test.release()
    seconds = time.monotonic() - began
    # "free" is what a GPU gets that somebody took in the meantime.
    skipped |= {result.uuid: told_to(who, result.message) or "" for result in results if result.name == "free"}
    failed = [result for result in results if result.status == "fail"]
    done = [uuid for uuid in chosen if uuid not in skipped]
    service.board.note("gpu.test", who, f"{len(done)} GPUs, {len(failed)} failures")
    return GpuTestView(
        success=not failed,
        tested=done,
        skipped=skipped,
        results=[
            TestView(
                name=result.name,
                uuid=result.uuid,
                others=list(result.others),
                status=result.status,
                value=result.value,
                unit=result.unit,
                expected=result.expected,
                message=result.message,
                fix=result.fix,
            )
            for result in results
            if result.name != "free"
        ],
        message=f"{count(len(done), 'GPU')} tested, {len(failed)} of {count(len(results), 'result')} failed",
        seconds=round(seconds, 3),
    )


def choose(state: MachineState, gpu_ids: Sequence[int | str]) -> tuple[list[str], dict[str, str]]:
    """UUIDs of the GPUs to test, and why others are not. Raises NotFound, and Conflict for a named one that is held."""
    samples = list(state.look.snapshot.gpus)
    if gpu_ids and samples:
        found = {str(name): state.look.find(str(name)) for name in gpu_ids}
        missing = [name for name, sample in found.items() if sample is None]
        if missing:
            raise NotFound(f"there is no GPU {', '.join(missing)[:200]}", told_of_those(state))
        samples = [sample for sample in found.values() if sample is not None]
    chosen, skipped = [], {}
    for sample in samples:
        uuid = sample.gpu.uuid
        holder = state.holder(uuid)
        if holder is not None and gpu_ids:
            raise Conflict(f"GPU {sample.gpu.index} is {holder.message}", "test it when the job has ended")
        stats = gpu_stats(state, sample)
        sick = stats.health.status == "fail"  # a sick one is what a test is for
        if holder is not None:
            skipped[uuid] = holder.message
        elif stats.held_by is not None or not (stats.available or sick or gpu_ids):
            skipped[uuid] = stats.unavailable_because or (stats.held_by.message if stats.held_by else "")
        else:
            chosen.append(uuid)
    return list(dict.fromkeys(chosen)), skipped


def _told(who: Who, device: Device) -> Device:
    return replace(device, unusable=told_to(who, device.unusable))


def recommended(service: Service, who: Who) -> RecommendationsView:
    """How this machine's GPUs are used best."""
    state = machine_state(service, who)
    gpus = [sample.gpu for sample in state.look.snapshot.gpus]
    found = recommend(
        gpus,
        state.look.verdicts,
        replace(state.inventory, devices=tuple(_told(who, device) for device in state.inventory.devices)),
        host=read_host(),
        source=state.look.late or state.look.snapshot.source,
        memory_fraction=current(service).config.memory_fraction,
    )
    unusable = {device.id for device in state.inventory.devices if device.unusable}
    return RecommendationsView(
        recommended_method=found.method,
        recommended_config=dict(found.config),
        reasons=dict(found.reasons),
        usable_gpus=[gpu.index for gpu in gpus if gpu.uuid not in unusable],
        advice=[
            GpuAdvice(
                subject=each.subject,
                level=each.level,
                message=each.message,
                action=each.action,
                source=each.source,
            )
            for each in found.advice
        ],
        gpu_source=state.look.snapshot.source,
    )
