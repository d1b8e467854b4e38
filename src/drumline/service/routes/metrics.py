"""GET /metrics: the machine's GPUs and runs, and the service's queue, for Prometheus."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from drumline.errors import Forbidden
from drumline.service.guarded import guarded_router
from drumline.service.problems import Answers
from drumline.service.state import TheService, TheWho


def router() -> APIRouter:
    """The route of metrics."""
    routes = guarded_router("metrics")
    text: Answers = {200: {"description": "In Prometheus' text format, or OpenMetrics.", "content": {"text/plain": {}}}}

    @routes.get("/metrics", response_class=Response, responses=text)
    def prometheus_metrics(service: TheService, who: TheWho, accept: Annotated[str, Header()] = "") -> Response:
        """GPUs, runs, jobs by state, waiting times and leases, for Prometheus; for those who may see all jobs."""
        if who.role != "admin" and who.owner != "*":
            raise Forbidden("the metrics tell of everybody's runs", "use a key of an admin, or a viewer's with owner *")
        body, content_type = service.prometheus.expose(accept)
        return Response(body, headers={"Content-Type": content_type})

    return routes
