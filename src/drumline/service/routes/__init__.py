"""The REST API, a file a subject; each route is a few lines over the board of jobs, the store or the machine."""

from __future__ import annotations

from fastapi import APIRouter

from drumline.service.routes import answers, audit, health, jobs, keys, logs, metrics, multigpu, session


def add_api(router: APIRouter) -> None:
    """All routes but the web page's."""
    for part in (jobs, logs, answers, keys, audit, session, health, metrics, multigpu):
        router.include_router(part.router())
