"""Look at a training before it is started: is it right, what would be chosen, and under which id it can be started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from drumline.config.load import config_from_mapping
from drumline.errors import Busy, Conflict, DrumlineError
from drumline.hardware.host import read_host
from drumline.hardware.records import Hardware
from drumline.jobs.commands import parallel_settings
from drumline.jobs.finetuning_commands import dry_run, finetune_command
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.intake_paths import Places
from drumline.jobs.placement import suits
from drumline.jobs.plans import PlanView
from drumline.jobs.records import Resources
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.store import Idempotency
from drumline.plan.devices import count as counted
from drumline.plan.resolve import resolve
from drumline.service.idempotency import PlanOnce, idempotency_of
from drumline.service.problems import responses
from drumline.service.routes.multigpu.asking import Method
from drumline.service.routes.multigpu.looks import asked_for, inventory_of
from drumline.service.routes.multigpu.requests import ConfigRequest
from drumline.service.routes.multigpu.settings import current
from drumline.service.state import Service, TheBase, TheService, TheWho
from drumline.service.views import View, finite

CLOSER_S = 120.0
"""How long model and data may be looked at."""
MOST_LOOKS = 2
"""At once: each is a process that reads a model's files and loads a library of a gigabyte."""

AT_A_GLANCE = ("kind", "device", "gpus", "world_size", "num_shards", "global_batch")
"""What of a plan is known before model and data were looked at."""
DECISIVE = frozenset({"train.global_batch", "train.batch_size_per_gpu", "train.gradient_accumulation_steps"})

Closer = Annotated[
    bool,
    Query(description="Also look at model and data, in a process of its own, which takes seconds: all settings then."),
]


class PlannedLinks(View):
    """Where it is started."""

    start: str = Field(examples=["/multigpu/training/auto"])


class PlannedView(View):
    """A training that is right as it was asked for; it is started by its id."""

    config_id: str = Field(
        description="For config_id of the path that starts it: within seven days, and once, where it has texts.",
        examples=["plan-1f0e2d3c4b5a6978"],
    )
    method: Method
    settings: dict[str, Any] = Field(description="By dotted names: what was said, and what the defaults add.")
    config: dict[str, Any] | None = Field(None, description="All settings, once model and data were looked at.")
    plan: dict[str, Any] | None = Field(
        None,
        description="What would be done on this machine as it is now: kind, devices, global_batch where something says "
        "it; with closer all of it, by the size of the model. Null where it could not start now.",
    )
    reasons: dict[str, str] = Field({}, description="By setting or part of the plan, why it is so.")
    notes: list[str] = Field(description="What was understood in another way than it was said, or is not known yet.")
    links: PlannedLinks


class Looks:
    """Closer looks that go on in this process."""

    def __init__(self) -> None:
        self.num = 0


def add(routes: APIRouter) -> None:
    """Add this path."""
    looks = Looks()

    @routes.post("/training/config", operation_id="plan_training", responses=responses(404, 409, 413))
    async def plan_training(
        body: ConfigRequest,
        service: TheService,
        who: TheWho,
        base: TheBase,
        closer: Closer = False,
        key: PlanOnce = None,
    ) -> PlannedView:
        """Check a training and keep it under an id that a later start takes; model and data may be left for then."""
        method: Method = body.training_type or ("distributed" if body.world_size is not None else "auto")
        once = idempotency_of(key, who, "plan", body)
        request, kept = await run_in_threadpool(_keep, service, who, body, method, once)
        config: dict[str, Any] | None = None
        reasons: dict[str, str] = {}
        notes = list(kept.notes)
        if closer and request.model_name is not None:
            try:
                config, reasons = await look_closer(service, who, request, kept, looks)
            except Exception:
                if kept.is_new:  # nobody is told its id, so nobody could remove its texts
                    await run_in_threadpool(service.board.drop_plan, kept.id, who)
                raise
        plan, why, more = await run_in_threadpool(planned, service, request, kept, config)
        return PlannedView(
            config_id=kept.id,
            method=method,
            settings=finite(kept.config),
            config=finite(config),
            plan=finite(plan),
            reasons={**reasons, **why},
            notes=[*notes, *more],
            links=PlannedLinks(start=f"{base}/multigpu/training/{method}"),
        )


def _keep(
    service: Service, who: Who, body: ConfigRequest, method: Method, once: Idempotency | None
) -> tuple[JobRequest, PlanView]:
    defaults = current(service)
    request = asked_for(service, body, method, defaults.config, complete=False)
    return request, service.board.plan(request, who, once, defaults_version=defaults.version)


async def look_closer(
    service: Service, who: Who, request: JobRequest, kept: PlanView, looks: Looks
) -> tuple[dict[str, Any], dict[str, str]]:
    """Every setting of the run and why it is so, by a process that looks at model and data and trains nothing.

    Raises ConfigError and DataError for what cannot be learned, Busy where too many look, or it takes too long, and
    Conflict where its texts are not on this machine.
    """
    if looks.num >= MOST_LOOKS:
        raise Busy("others look at models just now", "try again, or leave closer out")
    looks.num += 1
    try:
        command = await run_in_threadpool(_command, service, who, request, kept)
        if command is None:
            return {}, {}
        folder = service.config.data_dir.expanduser().absolute()
        found = await asyncio.wait_for(dry_run(command, folder), CLOSER_S)
    except TimeoutError:
        raise Busy(f"model and data were not looked at within {CLOSER_S:.0f} s", "leave closer out") from None
    finally:
        looks.num -= 1
    return dict(found["config"]), dict(found["reasons"])


def _command(service: Service, who: Who, request: JobRequest, kept: PlanView) -> tuple[str, ...] | None:
    """The command that a job would run; None where it has no data yet."""
    places = Places(service.config, lambda job_id: _may_use(service, who, job_id))
    if kept.texts is not None:
        if not kept.texts.is_file():
            raise Conflict(f"the texts of {kept.id} are not on this machine", "plan it anew, or leave closer out")
        data = [str(kept.texts)]
    elif request.path is not None:
        paths = [request.path] if isinstance(request.path, str) else list(dict.fromkeys(request.path))
        data = [places.data(path, "path") for path in paths]
    else:
        return None
    assert request.model_name is not None
    settings = as_overrides(parallel_settings(request.parallel)) + as_overrides(kept.config)
    return finetune_command(places.model(request.model_name), data, settings)


def _may_use(service: Service, who: Who, job_id: str) -> bool:
    try:
        service.board.get(job_id, who)
    except DrumlineError:
        return False
    return True


def planned(
    service: Service, request: JobRequest, kept: PlanView, config: dict[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, str], list[str]]:
    """What the run would be on the devices that are usable now: plan, reasons, and notes on what is not known.

    config: all its settings, where model and data were looked at; None: only what does not depend on these is told.
    """
    there, count, notes = _devices(service, kept.resources)
    if not count:
        return None, {}, notes
    chosen: dict[str, Any] = {"hardware.gpus": None, "hardware.count": None}
    if not there.gpus and request.parallel != "data_parallel":
        chosen["hardware.num_processes"] = count
    # Of the rest only that a run ends somewhere is asked for; how long it is is not told.
    said = {} if config else {"train.max_steps": 1} | parallel_settings(request.parallel) | _known(kept.config)
    open_ones = set[str]()
    if not config:
        notes.append("model and data were not looked at; ?closer=true does, and says all settings and the whole plan")
        if not {"train.global_batch", "train.batch_size_per_gpu"}.intersection(said):
            said["train.global_batch"], open_ones = count, {"global_batch"}
            notes.append("the global batch is chosen by model and data")
    try:
        whole = config_from_mapping(config or {}, "the plan", as_overrides({**said, **chosen}))
        found = resolve(whole, there).to_json()
    except DrumlineError as error:
        return None, {}, [*notes, f"it cannot be planned on this machine as it is now: {error.problem}"]
    reasons = found.pop("reasons")
    if not config:
        found = {name: found[name] for name in AT_A_GLANCE if name not in open_ones}
    return found, {f"plan.{name}": why for name, why in reasons.items() if name in found}, notes


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those by which kind, devices and batch are known; a model's and its data's mean nothing without these."""
    return {name: value for name, value in settings.items() if name in DECISIVE or name.startswith("parallel")}


def _devices(service: Service, asked: Resources) -> tuple[Hardware, int, list[str]]:
    """The machine with no other GPUs than a job would get now, how many devices that is, 0 for too few, and notes."""
    look, inventory = service.machine.look(), inventory_of(service)
    usable = [device.id for device in inventory.devices if device.unusable is None and suits(device, asked)]
    count = len(usable) if asked.most is None else min(asked.most, len(usable))
    notes = []
    if count < asked.least:
        notes.append(f"it needs {counted(asked.least, 'device')}, and of those that suit it {count} can be used now")
        count = 0
    elif asked.is_elastic:
        notes.append(f"it has {asked.min_devices} to {asked.max_devices} devices, by turns; this is for {count}")
    known = {sample.gpu.uuid: sample.gpu for sample in look.snapshot.gpus}
    gpus = tuple(known[uuid] for uuid in usable[:count] if uuid in known)
    if inventory.has_gpus and len(gpus) < count:
        notes.append("the driver does not tell of its GPUs now")
        count = 0
    return Hardware(gpus, read_host(), look.snapshot.source), count, notes
