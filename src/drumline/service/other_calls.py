"""What the clients ask of a service besides jobs: calls, each with the record that answers it.

The records of /multigpu stand beside their routes, which takes the server's libraries: imported when first asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from drumline.service.calls import Call, checked_id, job_path, query_of
from drumline.service.views import CheckpointList, ConfigView, JobDetail

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

Action = Literal["cleanup", "monitor", "optimize"]
Strategy = Literal["auto", "dataparallel", "distributed"]


def config_of(job_id: str) -> tuple[type[ConfigView], Call]:
    """A job's settings."""
    return ConfigView, Call("GET", f"{job_path(job_id)}/config")


def checkpoints_of(job_id: str) -> tuple[type[CheckpointList], Call]:
    """What a job has saved."""
    return CheckpointList, Call("GET", f"{job_path(job_id)}/checkpoints")


def health() -> tuple[type[MachineHealth], Call]:
    """Whether the service does its work."""
    from drumline.service.routes.multigpu.gpu_views import MachineHealth

    return MachineHealth, Call("GET", "/multigpu/health")


def stats() -> tuple[type[StatsView], Call]:
    """All GPUs."""
    from drumline.service.routes.multigpu.gpu_views import StatsView

    return StatsView, Call("GET", "/multigpu/stats")


def gpu(gpu_id: int | str) -> tuple[type[GpuStats], Call]:
    """One GPU."""
    from drumline.service.routes.multigpu.gpu_views import GpuStats

    name = checked_id(str(gpu_id), "a GPU", "give its index or UUID, as drumline gpus shows them")
    return GpuStats, Call("GET", f"/multigpu/gpu/{name}/stats")


def recommendations() -> tuple[type[RecommendationsView], Call]:
    """What to do about each GPU."""
    from drumline.service.routes.multigpu.gpu_views import RecommendationsView

    return RecommendationsView, Call("GET", "/multigpu/gpu/recommendations")


def gpu_test(request: Mapping[str, Any]) -> tuple[type[GpuTestView], Call]:
    """Active tests; each further request would be another one, for minutes."""
    from drumline.service.routes.multigpu.gpu_views import GpuTestView

    return GpuTestView, Call("POST", "/multigpu/gpu/test", body=dict(request), is_repeatable=False)


def resources() -> tuple[type[ResourcesStatusView], Call]:
    """Devices, leases and the queue."""
    from drumline.service.routes.multigpu.resource_views import ResourcesStatusView

    return ResourcesStatusView, Call("GET", "/multigpu/resources/status")


def manage(action: Action, request: Mapping[str, Any]) -> tuple[type[ManageView], Call]:
    """Give back what nobody uses, or look; what is given back already is not given back twice."""
    from drumline.service.routes.multigpu.resource_views import ManageView

    return ManageView, Call("POST", "/multigpu/resources/manage", body={"action": action, **request})


def performance(days: int, limit: int) -> tuple[type[PerformanceView], Call]:
    """What was measured, and what it cost."""
    from drumline.service.routes.multigpu.performance import PerformanceView

    return PerformanceView, Call("GET", "/multigpu/performance/metrics", query_of({"days": days, "limit": limit}))


def defaults(change: Mapping[str, Any] | None = None) -> tuple[type[DefaultsView], Call]:
    """What later trainings take; with a change, once it is made."""
    from drumline.service.routes.multigpu.settings import DefaultsView

    if change is None:
        return DefaultsView, Call("GET", "/multigpu/config")
    # The path takes no key, and done again it would undo what somebody else set meanwhile.
    return DefaultsView, Call("POST", "/multigpu/config", body=dict(change), is_repeatable=False)


def plan(request: Mapping[str, Any], *, closer: bool) -> tuple[type[PlannedView], Call]:
    """A training that is checked and kept, and not started; with a key, so that it is kept once."""
    from drumline.service.routes.multigpu.planning import PlannedView

    query = [("closer", "true")] if closer else []
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    return PlannedView, Call("POST", "/multigpu/training/config", query, dict(request), headers)


def delete_plan(config_id: str) -> Call:
    """A plan that is kept no longer, nor the texts that came with it."""
    name = checked_id(config_id, "a plan", "give the config_id that training_config answered with")
    return Call("DELETE", f"/multigpu/training/config/{name}")


def start(request: Mapping[str, Any], strategy: Strategy) -> tuple[type[JobDetail], Call]:
    """A training that begins; with a key, so that it begins once."""
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    return JobDetail, Call("POST", f"/multigpu/training/{strategy}", body=dict(request), headers=headers)


def history(compare: Sequence[str], filters: Mapping[str, Any]) -> tuple[type[HistoryView], Call]:
    """Trainings that fit, and some of them beside each other."""
    from drumline.service.routes.multigpu.history import HistoryView

    return HistoryView, Call("GET", "/multigpu/training/history", query_of({**filters, "compare": list(compare)}))


def keys(filters: Mapping[str, Any]) -> tuple[type[KeyList], Call]:
    """API keys, without their secrets."""
    from drumline.service.routes.keys import KeyList

    return KeyList, Call("GET", "/keys", query_of(filters))


def create_key(request: Mapping[str, Any]) -> tuple[type[NewKeyView], Call]:
    """An API key that is made; its secret is told once, so that a second request must be a second key."""
    from drumline.service.routes.keys import NewKeyView

    return NewKeyView, Call("POST", "/keys", body=dict(request), is_repeatable=False)


def revoke_key(key_id: str) -> Call:
    """A key that opens nothing any more."""
    return Call("DELETE", f"/keys/{checked_id(key_id, 'a key', 'see them with: drumline tokens list')}")


def audit(filters: Mapping[str, Any]) -> tuple[type[AuditList], Call]:
    """Who did what."""
    from drumline.service.routes.audit import AuditList

    return AuditList, Call("GET", "/audit", query_of(filters))
