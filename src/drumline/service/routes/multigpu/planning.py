"""Look at a training before it is started: is it right, what would be chosen, and under which id it can be started."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from drumline.config.load import config_from_mapping
from drumline.errors import Busy, DrumlineError
from drumline.hardware.host import read_host
from drumline.hardware.records import Hardware
from drumline.jobs.commands import parallel_settings
from drumline.jobs.finetuning_commands import dry_run, finetune_command
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.intake_paths import Places
from drumline.jobs.plans import PlanView
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.retry_folder import ROWS
from drumline.plan.resolve import resolve
from drumline.service.problems import responses
from drumline.service.routes.multigpu.asking import Method, job_request
from drumline.service.routes.multigpu.looks import has_gpus, inventory_of
from drumline.service.routes.multigpu.requests import ConfigRequest
from drumline.service.routes.multigpu.settings import current
from drumline.service.state import Service, TheBase, TheService, TheWho
from drumline.service.views import View, finite

CLOSER_S = 120.0
"""How long model and data may be looked at."""
MOST_LOOKS = 2
"""At once: each is a process that reads a model's files and loads a library of a gigabyte."""

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
        None, description="World size, kind, batch, precision, steps: what would be done on this machine as it is now."
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

    @routes.post("/training/config", operation_id="plan_training", responses=responses(404, 413))
    async def plan_training(
        body: ConfigRequest, service: TheService, who: TheWho, base: TheBase, closer: Closer = False
    ) -> PlannedView:
        """Check a training and keep it under an id that a later start takes; model and data may be left for then."""
        method: Method = body.training_type or ("distributed" if body.world_size is not None else "auto")
        request, kept = await run_in_threadpool(_keep, service, who, body, method)
        config: dict[str, Any] | None = None
        reasons: dict[str, str] = {}
        notes = list(kept.notes)
        if closer and request.model_name is not None:
            config, reasons = await look_closer(service, who, request, kept, looks)
        plan, why, more = await run_in_threadpool(planned, service, request, config)
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


def _keep(service: Service, who: Who, body: ConfigRequest, method: Method) -> tuple[JobRequest, PlanView]:
    defaults = current(service).config
    request = job_request(body, method, defaults, has_gpus=has_gpus(service), complete=False)
    return request, service.board.plan(request, who, has_defaults=True)


async def look_closer(
    service: Service, who: Who, request: JobRequest, kept: PlanView, looks: Looks
) -> tuple[dict[str, Any], dict[str, str]]:
    """Every setting of the run and why it is so, by a process that looks at model and data and trains nothing.

    Raises ConfigError and DataError for what cannot be learned, Busy where too many look, or it takes too long.
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
    if request.texts is not None:
        data = [str(service.config.data_dir.expanduser().absolute() / "plans" / kept.id / ROWS)]
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
    service: Service, request: JobRequest, config: dict[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, str], list[str]]:
    """What the run would be on the devices that are usable now: plan, reasons, and notes on what is not known."""
    if not config:
        return None, {}, ["batch, precision and kind are chosen when it starts; ?closer=true says them now"]
    look, inventory = service.machine.look(), inventory_of(service)
    usable = {device.id for device in inventory.devices if device.unusable is None}
    gpus = tuple(sample.gpu for sample in look.snapshot.gpus if sample.gpu.uuid in usable)
    asked = request.resources.devices if request.resources is not None else "auto"
    count = len(usable) if asked == "auto" else asked
    notes = []
    if count > len(usable):
        notes.append(f"it asks for {count} devices, and {len(usable)} are usable now")
    settings = {name: dict(value) if isinstance(value, dict) else value for name, value in config.items()}
    hardware = settings.setdefault("hardware", {})
    hardware |= {"gpus": None, "count": None}
    if not inventory.has_gpus and request.parallel != "data_parallel":
        hardware["num_processes"] = max(1, count)
    try:
        found = resolve(
            config_from_mapping(settings, "the plan"), Hardware(gpus[:count], read_host(), look.snapshot.source)
        )
    except DrumlineError as error:
        return None, {}, [*notes, f"it cannot be planned on this machine as it is now: {error.problem}"]
    values = found.to_json()
    reasons = values.pop("reasons")
    return values, {f"plan.{name}": why for name, why in reasons.items()}, notes
