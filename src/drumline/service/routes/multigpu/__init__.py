"""The paths under /multigpu: GPUs, training, resources."""

from __future__ import annotations

from fastapi import APIRouter

from drumline.service.guarded import guarded_router
from drumline.service.routes.multigpu import (
    gpu_work,
    history,
    looks,
    performance,
    planning,
    plans,
    resources,
    settings,
    training,
)


def router() -> APIRouter:
    """All of them."""
    routes = guarded_router("multigpu", "/multigpu")
    for part in (looks, settings, training, planning, plans, history, resources, performance, gpu_work):
        part.add(routes)
    return routes
