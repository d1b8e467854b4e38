"""Whether the service lives, and whether it can work: for load balancers and supervisors, without a key."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from drumline.errors import Busy
from drumline.jobs.silence import SILENT_S
from drumline.service.guarded import open_router
from drumline.service.problems import responses
from drumline.service.state import Service, TheService
from drumline.service.views import View


class HealthView(View):
    """That the process answers."""

    status: Literal["ok"] = "ok"


class ReadyView(View):
    """That requests can be answered and jobs be started."""

    status: Literal["ready"] = "ready"
    supervised: bool = Field(description="Whether a process looks after this machine's jobs.")


def router() -> APIRouter:
    """The routes of health."""
    routes = open_router("health")

    @routes.get("/healthz")
    async def healthz() -> HealthView:
        """That the process answers; nothing else is looked at."""
        return HealthView()

    @routes.get("/readyz", responses=responses(503))
    def readyz(service: TheService) -> ReadyView:
        """That the store can be read, and this machine's jobs are looked after; 503 otherwise."""
        is_supervised = supervised(service, time.time())
        if service.supervisor is not None and not is_supervised:
            raise Busy("nobody looks after this machine's jobs", "see the service's log")
        return ReadyView(supervised=is_supervised)

    return routes


def supervised(service: Service, now: float) -> bool:
    """Whether some process gave a sign of life on this node lately. Raises StoreError."""
    beats = service.store.services.alive(service.node, now - SILENT_S)
    # At the start the first sign may be on its way.
    return bool(beats) or (service.supervisor is not None and now - service.began < SILENT_S)
