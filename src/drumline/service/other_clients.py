"""Parts of the clients: what they ask besides jobs, `client.runs`, `.multigpu` and `.admin`, waiting and awaiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel

from drumline.service import other_calls as calls
from drumline.service.calls import Call
from drumline.service.other_calls import Action, Strategy
from drumline.service.views import CheckpointView, ConfigView, JobDetail

if TYPE_CHECKING:
    from drumline.service.routes.audit import AuditList
    from drumline.service.routes.keys import KeyList, NewKeyView
    from drumline.service.routes.multigpu.gpu_views import (
        GpuStats,
        GpuTestView,
        MachineHealth,
        RecommendationsView,
        StatsView,
    )
    from drumline.service.routes.multigpu.history import HistoryView
    from drumline.service.routes.multigpu.performance import PerformanceView
    from drumline.service.routes.multigpu.planning import PlannedView
    from drumline.service.routes.multigpu.resource_views import ManageView, ResourcesStatusView
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


class Ask(Protocol):
    """Asks a service, whose answer has nothing to read."""

    def __call__(self, call: Call, /) -> object:
        """Whatever; errors are raised."""


class AsyncAsk(Protocol):
    """The same, awaited."""

    async def __call__(self, call: Call, /) -> object:
        """Whatever; errors are raised."""


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

    def __init__(self, read: Read, ask: Ask) -> None:
        self._read, self._ask = read, ask

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

    def delete_plan(self, config_id: str) -> None:
        """Remove a plan of one's own that was not started, with the texts that came with it."""
        self._ask(calls.delete_plan(config_id))

    def history(self, *, compare: Sequence[str] = (), **filters: Any) -> HistoryView:
        """Trainings, the newest first, a page of them: the filters are those of Client.list, and limit and cursor.

        compare: ids of trainings that are put beside each other, with the settings in which they differ.
        """
        return self._read(*calls.history(compare, filters))

    def start(self, request: Mapping[str, Any], *, strategy: Strategy = "auto") -> JobDetail:
        """Start a training, as POST /multigpu/training/<strategy> takes it: a config_id, or model and data."""
        return self._read(*calls.start(request, strategy))

    def gpu(self, gpu_id: int | str) -> GpuStats:
        """One GPU, by index or UUID."""
        return self._read(*calls.gpu(gpu_id))

    def recommendations(self) -> RecommendationsView:
        """What to do about each GPU, and how trainings use this machine best."""
        return self._read(*calls.recommendations())

    def test_gpus(self, **request: Any) -> GpuTestView:
        """Test GPUs that nobody uses (gpu_ids, limit_s), for which the client's timeout_s must have room."""
        return self._read(*calls.gpu_test(request))

    def resources(self) -> ResourcesStatusView:
        """Devices, leases, the queue with reasons, strangers on GPUs, room on the disk."""
        return self._read(*calls.resources())

    def manage(self, action: Action, **request: Any) -> ManageView:
        """Give back what nobody uses (cleanup), see what is in use (monitor), or find settings (optimize)."""
        return self._read(*calls.manage(action, request))

    def performance(self, *, days: int = 30, limit: int = 50) -> PerformanceView:
        """Rates, MFU, goodput, queue times, energy and cost of the last days; limit: jobs that are listed."""
        return self._read(*calls.performance(days, limit))


class Admin:
    """API keys, and who did what: for admins."""

    def __init__(self, read: Read, ask: Ask) -> None:
        self._read, self._ask = read, ask

    def keys(self, **filters: Any) -> KeyList:
        """API keys without their secrets, the newest first, a page of them: owner, role, valid, limit, cursor."""
        return self._read(*calls.keys(filters))

    def create_key(self, owner: str, **request: Any) -> NewKeyView:
        """Make an API key (role, name, expires_in_days). Its secret is the answer's `key`, and told this once."""
        return self._read(*calls.create_key({"owner": owner, **request}))

    def revoke_key(self, key_id: str) -> None:
        """Let a key open nothing any more."""
        self._ask(calls.revoke_key(key_id))

    def audit(self, **filters: Any) -> AuditList:
        """Who did what, the newest first, a page: who, event, created_after, created_before, limit, cursor."""
        return self._read(*calls.audit(filters))


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

    def __init__(self, read: AsyncRead, ask: AsyncAsk) -> None:
        self._read, self._ask = read, ask

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

    async def delete_plan(self, config_id: str) -> None:
        """Remove a plan of one's own that was not started, with the texts that came with it."""
        await self._ask(calls.delete_plan(config_id))

    async def history(self, *, compare: Sequence[str] = (), **filters: Any) -> HistoryView:
        """Trainings, the newest first, a page of them, as Multigpu.history."""
        return await self._read(*calls.history(compare, filters))

    async def start(self, request: Mapping[str, Any], *, strategy: Strategy = "auto") -> JobDetail:
        """Start a training, as POST /multigpu/training/<strategy> takes it: a config_id, or model and data."""
        return await self._read(*calls.start(request, strategy))

    async def gpu(self, gpu_id: int | str) -> GpuStats:
        """One GPU, by index or UUID."""
        return await self._read(*calls.gpu(gpu_id))

    async def recommendations(self) -> RecommendationsView:
        """What to do about each GPU, and how trainings use this machine best."""
        return await self._read(*calls.recommendations())

    async def test_gpus(self, **request: Any) -> GpuTestView:
        """Test GPUs that nobody uses (gpu_ids, limit_s), for which the client's timeout_s must have room."""
        return await self._read(*calls.gpu_test(request))

    async def resources(self) -> ResourcesStatusView:
        """Devices, leases, the queue with reasons, strangers on GPUs, room on the disk."""
        return await self._read(*calls.resources())

    async def manage(self, action: Action, **request: Any) -> ManageView:
        """Give back what nobody uses (cleanup), see what is in use (monitor), or find settings (optimize)."""
        return await self._read(*calls.manage(action, request))

    async def performance(self, *, days: int = 30, limit: int = 50) -> PerformanceView:
        """Rates, MFU, goodput, queue times, energy and cost of the last days; limit: jobs that are listed."""
        return await self._read(*calls.performance(days, limit))


class AsyncAdmin:
    """As Admin; every method is awaited."""

    def __init__(self, read: AsyncRead, ask: AsyncAsk) -> None:
        self._read, self._ask = read, ask

    async def keys(self, **filters: Any) -> KeyList:
        """API keys without their secrets, the newest first, a page of them: owner, role, valid, limit, cursor."""
        return await self._read(*calls.keys(filters))

    async def create_key(self, owner: str, **request: Any) -> NewKeyView:
        """Make an API key (role, name, expires_in_days). Its secret is the answer's `key`, and told this once."""
        return await self._read(*calls.create_key({"owner": owner, **request}))

    async def revoke_key(self, key_id: str) -> None:
        """Let a key open nothing any more."""
        await self._ask(calls.revoke_key(key_id))

    async def audit(self, **filters: Any) -> AuditList:
        """Who did what, the newest first, a page: who, event, created_after, created_before, limit, cursor."""
        return await self._read(*calls.audit(filters))
