"""Parts of the clients: what they ask besides jobs, `client.runs` and `client.multigpu`, waiting and awaiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel

from drumline.service import other_calls as calls
from drumline.service.calls import Call
from drumline.service.views import CheckpointView, ConfigView

if TYPE_CHECKING:
    from drumline.service.routes.multigpu.gpu_views import MachineHealth, StatsView
    from drumline.service.routes.multigpu.history import HistoryView
    from drumline.service.routes.multigpu.planning import PlannedView
    from drumline.service.routes.multigpu.settings import DefaultsView

A = TypeVar("A", bound=BaseModel)


class Read(Protocol):
    """Asks a service, and reads the answer as a record."""

    def __call__(self, kind: type[A], call: Call, /) -> A:
        """The answer to a call, as this kind of record."""


class AsyncRead(Protocol):
    """The same, awaited."""

    async def __call__(self, kind: type[A], call: Call, /) -> A:
        """The answer to a call, as this kind of record."""


class Runs:
    """What jobs' runs have in their folders, besides logs, metrics and events."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def config(self, job_id: str) -> ConfigView:
        """A job's settings as they were asked for, and as its run resolved them, with its plan."""
        return self._read(*calls.config_of(job_id))

    def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """The complete checkpoints of a job's run, the newest first."""
        return self._read(*calls.checkpoints_of(job_id)).items


class Multigpu:
    """The paths under /multigpu that jobs do not have."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def health(self) -> MachineHealth:
        """Whether the service does its work, and what of it is degraded and why."""
        return self._read(*calls.health())

    def stats(self) -> StatsView:
        """All GPUs of the machine, and which of them are free."""
        return self._read(*calls.stats())

    def get_config(self) -> DefaultsView:
        """What later trainings take where they do not say it."""
        return self._read(*calls.defaults())

    def set_config(self, **change: Any) -> DefaultsView:
        """Change some of it, as batch_size_per_gpu=8; what is left out stays. For admins."""
        return self._read(*calls.defaults(change))

    def training_config(self, request: Mapping[str, Any], *, closer: bool = False) -> PlannedView:
        """Check a training and keep it, under a config_id by which it can be started; nothing is started.

        request: as POST /multigpu/training/config takes it. closer: model and data are looked at too, for all settings
        and the plan; that may take two minutes, for which the client's timeout_s must have room.
        """
        return self._read(*calls.plan(request, closer=closer))

    def history(self, *, compare: Sequence[str] = (), **filters: Any) -> HistoryView:
        """Trainings, the newest first, a page of them: the filters are those of Client.list, and limit and cursor.

        compare: ids of trainings that are put beside each other, with the settings in which they differ.
        """
        return self._read(*calls.history(compare, filters))


class AsyncRuns:
    """As Runs; every method is awaited."""

    def __init__(self, read: AsyncRead) -> None:
        self._read = read

    async def config(self, job_id: str) -> ConfigView:
        """A job's settings as they were asked for, and as its run resolved them, with its plan."""
        return await self._read(*calls.config_of(job_id))

    async def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """The complete checkpoints of a job's run, the newest first."""
        return (await self._read(*calls.checkpoints_of(job_id))).items


class AsyncMultigpu:
    """As Multigpu; every method is awaited."""

    def __init__(self, read: AsyncRead) -> None:
        self._read = read

    async def health(self) -> MachineHealth:
        """Whether the service does its work, and what of it is degraded and why."""
        return await self._read(*calls.health())

    async def stats(self) -> StatsView:
        """All GPUs of the machine, and which of them are free."""
        return await self._read(*calls.stats())

    async def get_config(self) -> DefaultsView:
        """What later trainings take where they do not say it."""
        return await self._read(*calls.defaults())

    async def set_config(self, **change: Any) -> DefaultsView:
        """Change some of it, as batch_size_per_gpu=8; what is left out stays. For admins."""
        return await self._read(*calls.defaults(change))

    async def training_config(self, request: Mapping[str, Any], *, closer: bool = False) -> PlannedView:
        """Check a training and keep it, as Multigpu.training_config."""
        return await self._read(*calls.plan(request, closer=closer))

    async def history(self, *, compare: Sequence[str] = (), **filters: Any) -> HistoryView:
        """Trainings, the newest first, a page of them, as Multigpu.history."""
        return await self._read(*calls.history(compare, filters))
