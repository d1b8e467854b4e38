"""The application, and the router that others mount into their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from drumline import __version__
from drumline.config.service import ServiceConfig
from drumline.errors import DrumlineError
from drumline.service.access import check_keys
from drumline.service.guarded import open_router, operation_id
from drumline.service.headers import add_security_headers
from drumline.service.housekeeping import kept_house
from drumline.service.opening import open_service
from drumline.service.problems import answer_to
from drumline.service.routes import add_api
from drumline.service.schema import with_problems_named
from drumline.service.state import Service

Opener = Callable[[ServiceConfig], Service]

SUMMARY = "Starts, watches and compares training on the GPUs of one machine."


def make_router(config: ServiceConfig | None = None, *, opener: Opener = open_service) -> APIRouter:
    """Every route of the API, for `app.include_router(router, prefix="/api/v1")`; it opens the service at the start.

    config: None takes the defaults, with all data in ./drumline-data. opener stands in for open_service in tests.
    Raises ConfigError where keys are off and not only this machine can reach the service.
    """
    settings = ServiceConfig() if config is None else config
    check_keys(settings)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        service = await run_in_threadpool(opener, settings)
        app.state.drumline = service
        try:
            async with kept_house(service):
                yield {"drumline": service}
        finally:
            await run_in_threadpool(service.close)

    router = APIRouter(lifespan=lifespan, generate_unique_id_function=operation_id)
    add_api(router)
    return router


def create_app(config: ServiceConfig | None = None, *, opener: Opener = open_service) -> FastAPI:
    """An application with the API, the web page and problems as answers to everything else."""
    settings = ServiceConfig() if config is None else config
    app = FastAPI(
        title="drumline",
        summary=SUMMARY,
        version=__version__,
        openapi_url=None,  # answered by a route of ours, like all else
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    app.include_router(make_router(settings, opener=opener), prefix=settings.prefix)
    app.openapi = with_problems_named(app.openapi)  # type: ignore[method-assign]
    app.include_router(_document_router(app), prefix=settings.prefix)
    add_page(app, settings)
    app.add_exception_handler(HTTPException, _as_problem)
    app.add_exception_handler(DrumlineError, _as_problem)
    app.add_exception_handler(Exception, _as_problem)
    if settings.access.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.access.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[
                "Authorization",
                "X-API-Key",
                "Content-Type",
                "Idempotency-Key",
                "If-Match",
                "If-None-Match",
                "Last-Event-ID",
            ],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    return app


def add_page(app: FastAPI, config: ServiceConfig) -> None:
    """The web page, last: its paths are those that no route of the API has."""
    from drumline.service.page.page import page_router

    app.include_router(page_router(), prefix=config.prefix)


def _document_router(app: FastAPI) -> APIRouter:
    """The OpenAPI document, made once."""
    routes = open_router("document")

    @cache
    def made() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    @routes.get("/openapi.json", include_in_schema=False)
    def openapi_document() -> Response:
        """What can be asked, and what may be answered."""
        return Response(made(), media_type="application/json")

    return routes


async def _as_problem(request: Request, error: Exception) -> Response:
    answer = answer_to(error, request)
    add_security_headers(answer)
    return answer
