"""Start a training: one process with all GPUs, one process a GPU, or as suits the machine."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from drumline.errors import NotFound, Unauthorized
from drumline.jobs.records import Job
from drumline.jobs.requests import Who
from drumline.service.access import FIX
from drumline.service.details import detail_of
from drumline.service.idempotency import IdempotencyKey, idempotency_of
from drumline.service.problems import responses
from drumline.service.routes.multigpu.asking import Method, planned_request
from drumline.service.routes.multigpu.looks import asked_for
from drumline.service.routes.multigpu.requests import DistributedRequest, TrainingRequest
from drumline.service.routes.multigpu.settings import current
from drumline.service.state import Service, TheBase, TheService, TheWho, caller_of
from drumline.service.views import JobDetail

FIRST_LOOK_S, LAST_LOOK_S = 0.1, 1.0
"""Between two looks at a job that a call waits for: more seldom the longer it takes."""

Wait = Annotated[
    bool, Query(description="Hold the call until the training has ended, at most as long as the service allows.")
]
STARTED: dict[int | str, dict[str, Any]] = {
    200: {"description": "With wait=true: it has ended, and this is what became of it.", "model": JobDetail},
    202: {
        "description": "It is queued, or with wait=true still goes on.",
        "headers": {"Location": {"description": "Where it is seen.", "schema": {"type": "string"}}},
    },
    **responses(404, 409, 413),
}


class Starting:
    """One request for a training, on its way to an answer."""

    def __init__(self, service: Service, who: Who, base: str, request: Request, response: Response) -> None:
        self._service, self._who, self._base = service, who, base
        self._request, self._response = request, response

    async def answer(self, method: Method, body: TrainingRequest, key: str | None, *, wait: bool) -> JobDetail:
        """Queue it, and with `wait` stay until it has ended; nobody's thread is held meanwhile."""
        if wait:
            self._service.streams.check_room()
        job = await run_in_threadpool(self._submit, method, body, key)
        if wait:
            job = await self._ended(job)
        detail = await run_in_threadpool(self._view, job)
        self._response.headers["Location"] = detail.links.self
        self._response.status_code = 200 if wait and job.has_ended else 202
        return detail

    def _submit(self, method: Method, body: TrainingRequest, key: str | None) -> Job:
        board, store = self._service.board, self._service.store
        once = idempotency_of(key, self._who, f"multigpu/{method}", body)
        # Before anything else is looked at: the plan may be gone by now, and the defaults may be others.
        if once is not None and (earlier := store.jobs.added_before(once)) is not None:
            return earlier
        if body.config_id is None:
            defaults = current(self._service)
            wanted = asked_for(self._service, body, method, defaults.config)
            return board.submit(wanted, self._who, once, defaults_version=defaults.version)
        try:
            plan = board.planned(body.config_id, self._who)
            wanted = planned_request(body, method, plan.request)
            return board.submit(wanted, self._who, once, defaults_version=plan.defaults_version, plan=plan)
        except NotFound:  # the same call may have started it at this moment
            if once is not None and (earlier := store.jobs.added_before(once)) is not None:
                return earlier
            raise

    async def _ended(self, job: Job) -> Job:
        """The job once it has ended, or when nobody listens any more, the service closes, or it took too long.

        Raises Unauthorized once the key of the call opens nothing any more.
        """
        service = self._service
        loop, pause = asyncio.get_running_loop(), FIRST_LOOK_S
        limit = loop.time() + service.config.limits.max_wait_s
        service.streams.num_open += 1  # a call that is held costs as much as a stream, and is counted among them
        try:
            while not job.has_ended and loop.time() < limit:
                await asyncio.sleep(min(pause, max(0.0, limit - loop.time())))
                pause = min(LAST_LOOK_S, 1.5 * pause)
                if service.streams.closing.is_set() or await self._request.is_disconnected():
                    break
                job = await run_in_threadpool(self._look, job.id)
        finally:
            service.streams.num_open -= 1
        return job

    def _look(self, job_id: str) -> Job:
        if not self._service.access.is_valid(caller_of(self._request)):
            raise Unauthorized("the key of this call was revoked, or has run out", FIX)
        return self._service.board.get(job_id, self._who)

    def _view(self, job: Job) -> JobDetail:
        return detail_of(self._service.board, job, self._base)


async def starting(request: Request, response: Response, service: TheService, who: TheWho, base: TheBase) -> Starting:
    """What a request for a training goes through."""
    return Starting(service, who, base, request, response)


TheStarting = Annotated[Starting, Depends(starting)]


def add(routes: APIRouter) -> None:
    """Add these paths."""

    @routes.post("/training/dataparallel", operation_id="train_dataparallel", status_code=202, responses=STARTED)
    async def dataparallel(
        body: TrainingRequest, training: TheStarting, wait: Wait = False, key: IdempotencyKey = None
    ) -> JobDetail:
        """Fine-tune in one process, with a replica and a thread a GPU."""
        return await training.answer("dataparallel", body, key, wait=wait)

    @routes.post("/training/distributed", operation_id="train_distributed", status_code=202, responses=STARTED)
    async def distributed(
        body: DistributedRequest, training: TheStarting, wait: Wait = False, key: IdempotencyKey = None
    ) -> JobDetail:
        """Fine-tune in one process a GPU, as auto does: ddp where the training state fits each of them, else fsdp."""
        return await training.answer("distributed", body, key, wait=wait)

    @routes.post("/training/auto", operation_id="train_auto", status_code=202, responses=STARTED)
    async def auto(
        body: TrainingRequest, training: TheStarting, wait: Wait = False, key: IdempotencyKey = None
    ) -> JobDetail:
        """Fine-tune on the GPUs that are free, spread as suits."""
        return await training.answer("auto", body, key, wait=wait)
