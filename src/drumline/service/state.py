"""What the routes share: opened when the application starts, closed when it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPBearer

from drumline.config.service import ServiceConfig
from drumline.errors import StoreError, Unauthorized
from drumline.jobs.devices import node_of
from drumline.jobs.requests import Who
from drumline.service.access import COOKIE, Access, Caller
from drumline.service.exposition import ServiceCollector
from drumline.service.job_lists import JobLists
from drumline.service.machine import Machine
from drumline.service.rates import Rates
from drumline.service.streams import Streams

if TYPE_CHECKING:
    from drumline.jobs.board import Board
    from drumline.jobs.devices import DeviceWatch
    from drumline.jobs.store import Store
    from drumline.jobs.supervisor import Supervisor

logger = logging.getLogger("drumline.service")

READERS = 3
"""Answers that are made from the store at a time. Python runs one thread at once: with forty, as is usual, threads take
the interpreter from each other, and under load a quarter fewer requests are answered (benchmarks/results)."""


@dataclass
class Service:
    """Everything that answers requests: one a process."""

    config: ServiceConfig
    store: Store
    board: Board
    supervisor: Supervisor | None
    """None: this process only answers; jobs are looked after by another, or by nobody (tests)."""
    devices: DeviceWatch
    """Called, it gives the devices as they were seen last."""
    machine: Machine
    prometheus: ServiceCollector
    access: Access
    rates: Rates
    streams: Streams
    job_lists: JobLists = field(default_factory=JobLists)
    bases: dict[str, str] = field(default_factory=dict)
    """See `base_of`; by the root paths under which it is reached."""
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))
    """Taken by an answer out of the store while it is made."""
    began: float = field(default_factory=time.time)
    _is_closed: bool = False

    @property
    def node(self) -> str:
        """Name of this machine in the store."""
        return node_of(self.config)

    def start(self) -> None:
        """Begin to look at devices, and to look after jobs."""
        self.devices.start()
        if self.supervisor is not None:
            self.supervisor.start()

    def end_streams(self) -> None:
        """Let all streams end, so that a server that stops does not wait for them; from any thread."""
        self.streams.closing.set()

    def has_ended(self, job_id: str) -> bool:
        """Whether a job's state is final, or it is not there any more."""
        job = self.store.jobs.get(job_id)
        return job is None or job.has_ended

    def close(self) -> None:
        """End the supervisor (jobs go on), and give everything back; closing twice is allowed."""
        self.end_streams()
        if self._is_closed:
            return
        self._is_closed = True
        if self.supervisor is not None:
            self.supervisor.close()
        self.devices.close()
        self.machine.close()
        self._tell_refusals()
        self.store.close()

    def _tell_refusals(self) -> None:
        """Write what was counted of refused keys. A store that is away must not keep the service from ending."""
        try:
            self.access.refusals.write_due(all_of_them=True)
        except StoreError as error:
            logger.warning("refused keys of the last minute are not in the audit log: %s", error.problem)


def service_of(request: Request) -> Service:
    """What the application's lifespan opened."""
    service: Service | None = getattr(request.state, "drumline", None)
    if service is None:
        raise RuntimeError("the lifespan of drumline's router has not run: include it before the application starts")
    return service


def caller_of(request: Request) -> Caller:
    """Who asks, as the guarded route found."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        raise Unauthorized("an API key is needed", "use a guarded route")
    return caller


_BEARER = HTTPBearer(auto_error=False, scheme_name="key", description="An API key, dl_...")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, scheme_name="key_header")
_COOKIE = APIKeyCookie(name=COOKIE, auto_error=False, scheme_name="session", description="Of the web page.")


async def key_is_needed(
    _bearer: Annotated[object, Security(_BEARER)] = None,
    _header: Annotated[object, Security(_HEADER)] = None,
    _cookie: Annotated[object, Security(_COOKIE)] = None,
) -> None:
    """Tells OpenAPI how a key is sent; the guarded route itself looks at it, before anything else."""


async def who_of(request: Request) -> Who:
    """Who asks, as the guarded route found."""
    return caller_of(request).who


async def base_of(request: Request) -> str:
    """Where the service's paths begin, "" or as "/api/v1": mounted, behind a prefix or a proxy's root path."""
    bases, root = service_of(request).bases, request.scope.get("root_path", "")
    if root not in bases:
        bases[root] = request.url_for("drumline_list_jobs").path.removesuffix("/jobs")
    return bases[root]


async def _service(request: Request) -> Service:
    # A coroutine: what is none is called in a thread, which costs more than it does.
    return service_of(request)


TheService = Annotated[Service, Depends(_service)]
TheWho = Annotated[Who, Depends(who_of)]
TheBase = Annotated[str, Depends(base_of)]
