"""What trainings take where their request does not say: read it, change some of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import Field

from drumline.errors import Conflict, HardwareError, NotFound
from drumline.jobs.defaults import KIND, GPUConfig, notes_on, told_of, uuid_of, with_indexes, with_uuids
from drumline.jobs.requests import Who
from drumline.jobs.store import Versioned
from drumline.service.etags import etag_of, require_match, tagged
from drumline.service.problems import responses
from drumline.service.state import Service, TheService, TheWho
from drumline.service.views import View, timestamp

TRIES = 10
"""Of a change while others change it too."""

Change = Annotated[
    GPUConfig,
    Body(
        description="What is to change; fields that are left out keep what they have.",
        openapi_examples={
            "the usual call": {
                "value": {
                    "use_multi_gpu": True,
                    "gpu_ids": [0, 1, 2, 3],
                    "batch_size_per_gpu": 8,
                    "mixed_precision": True,
                }
            },
            "one field": {"value": {"memory_fraction": 0.8}},
        },
    ),
]

Version = Annotated[
    int | None, Query(ge=0, le=2**31 - 1, description="As it was then: defaults_version of a job; left out: as it is.")
]


class DefaultsView(View):
    """The defaults that later trainings take, and where they come from."""

    config: GPUConfig
    version: int = Field(description="Grows with each change; 0: nobody has changed anything.", examples=[3])
    changed_at: str | None = Field(None, examples=["2026-01-02T03:04:05.678Z"])
    changed_by: str | None = None
    gpu_uuids: list[str] = Field(
        [], description="The GPUs that gpu_ids names, the only ones that any job is given; they are kept by UUID."
    )
    notes: list[str] = Field([], description="What of a change has no effect on this machine, and why.")


@dataclass(frozen=True)
class Current:
    """The newest document."""

    config: GPUConfig
    document: Versioned | None

    @property
    def version(self) -> int:
        """0 where nobody has changed anything."""
        return 0 if self.document is None else self.document.version


def add(routes: APIRouter) -> None:
    """Add these paths."""

    @routes.get(
        "/config",
        operation_id="get_multigpu_config",
        response_model=DefaultsView,
        responses={304: {"description": "It is as If-None-Match says."}, **responses(404)},
    )
    def get_config(request: Request, service: TheService, version: Version = None) -> Response:
        """What later trainings take where they do not say it themselves; `version`: what they took then."""
        found = current(service) if version is None else at_version(service, version)
        return tagged(request, view_of(found, service.machine.look().indexes(), []))

    @routes.post(
        "/config", operation_id="set_multigpu_config", response_model=DefaultsView, responses=responses(409, 412)
    )
    def set_config(change: Change, request: Request, service: TheService, who: TheWho) -> Response:
        """Change what later trainings take where they do not say it. For admins.

        Trainings that were asked for before keep the settings that they have. But `gpu_ids` is a limit on the whole
        machine: from the next second on no job is given any other GPU, also none that waits already; one that needs
        more than are left waits, and says so. What runs keeps its GPUs until it ends or is stopped.

        If-Match with the ETag of GET makes sure that nobody else has changed it meanwhile.
        """
        said = change.model_dump(exclude_unset=True)
        indexes = service.machine.look().indexes()
        notes = notes_on(change, set(said), indexes)
        if "gpu_ids" in said:
            said["gpu_ids"] = _there(change, indexes)
        kept = put(service, said, who, indexes, request)
        # The tag is that of GET, which has no notes.
        headers = {"ETag": etag_of(view_of(kept, indexes, []).model_dump_json().encode())}
        return Response(view_of(kept, indexes, notes).model_dump_json(), 200, headers, media_type="application/json")


def current(service: Service) -> Current:
    """What later trainings take now."""
    return _current(service.store.settings.latest(KIND))


def at_version(service: Service, version: int) -> Current:
    """What they took once; 0: before anybody had changed anything. Raises NotFound."""
    document = service.store.settings.at_version(KIND, version)
    if document is None and version > 0:
        latest = current(service).version
        raise NotFound(f"the defaults have no version {version}", f"the newest is {latest}, the first is 0")
    return _current(document)


def _current(document: Versioned | None) -> Current:
    config = GPUConfig() if document is None else GPUConfig.model_validate(dict(document.values))
    return Current(config, document)


def put(service: Service, change: Mapping[str, Any], who: Who, indexes: Mapping[int, str], request: Request) -> Current:
    """Keep a change as a new version; of two at the same time each keeps what the other one changed.

    Raises PreconditionFailed where If-Match names another version, and Conflict where others change it all the time.
    """
    for _ in range(TRIES):
        before = current(service)
        require_match(request, etag_of(view_of(before, indexes, []).model_dump_json().encode()))
        try:
            service.board.set_defaults(change, who, expected=before.version)
        except Conflict:
            continue
        return current(service)
    raise Conflict("the defaults were changed by others again and again", "try again")


def view_of(found: Current, indexes: Mapping[int, str], notes: list[str]) -> DefaultsView:
    """As it is answered: GPUs by the numbers that they have now."""
    document, names = found.document, found.config.gpu_ids
    return DefaultsView(
        config=found.config.model_copy(update={"gpu_ids": with_indexes(names, indexes)}),
        version=found.version,
        changed_at=None if document is None else timestamp(document.at),
        changed_by=None if document is None else document.by,
        gpu_uuids=[uuid for name in names if (uuid := uuid_of(name, indexes)) is not None],
        notes=notes,
    )


def _there(change: GPUConfig, indexes: Mapping[int, str]) -> list[int | str]:
    """The named GPUs by UUID. Raises HardwareError where none of them is there, so that no job could ever start."""
    if indexes and change.gpu_ids and all(uuid_of(name, indexes) is None for name in change.gpu_ids):
        raise HardwareError("gpu_ids names no GPU of this machine", told_of(indexes))
    return with_uuids(change.gpu_ids, indexes)
