"""What the clients ask of a service besides jobs: calls, each with the record that answers it.

The records of /multigpu stand beside their routes, which takes the server's libraries: imported when first asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumline.service.calls import Call, job_path, query_of
from drumline.service.views import CheckpointList, ConfigView

if TYPE_CHECKING:
    from drumline.service.routes.multigpu.gpu_views import MachineHealth, StatsView
    from drumline.service.routes.multigpu.history import HistoryView
    from drumline.service.routes.multigpu.planning import PlannedView
    from drumline.service.routes.multigpu.settings import DefaultsView


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


def history(compare: Sequence[str], filters: Mapping[str, Any]) -> tuple[type[HistoryView], Call]:
    """Trainings that fit, and some of them beside each other."""
    from drumline.service.routes.multigpu.history import HistoryView

    return HistoryView, Call("GET", "/multigpu/training/history", query_of({**filters, "compare": list(compare)}))
