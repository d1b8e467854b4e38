"""Removes what is kept for a while only: plans that nobody started, idempotency keys, what was done long ago."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from drumline.config.service import ServiceConfig
from drumline.jobs.plans import remove_expired

if TYPE_CHECKING:
    from drumline.jobs.store import Store
    from drumline.service.state import Service

logger = logging.getLogger("drumline.service")

EVERY_S = 3600.0
"""Between two sweeps."""
DAY_S = 86_400.0
IDEMPOTENCY_S = DAY_S
"""How long a request that comes again with its Idempotency-Key gives the same job."""


def sweep(store: Store, config: ServiceConfig, now: float) -> None:
    """Remove what is too old. now: seconds since 1970. Raises StoreError."""
    remove_expired(store, config.data_dir.expanduser().absolute() / "plans", now)
    store.jobs.forget_idempotency(now - IDEMPOTENCY_S)
    store.log.forget(now - config.access.audit_days * DAY_S)


@asynccontextmanager
async def kept_house(service: Service, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Sweep now, and then again and again beside the requests; the end waits for a sweep that goes on."""
    over = asyncio.Event()
    await _swept(service, every_s)
    house = asyncio.create_task(_keep(service, every_s, over), name="drumline-housekeeping")
    try:
        yield
    finally:
        over.set()
        await house


async def _keep(service: Service, every_s: float, over: asyncio.Event) -> None:
    while not over.is_set():
        try:
            await asyncio.wait_for(over.wait(), every_s)
        except TimeoutError:
            await _swept(service, every_s)


async def _swept(service: Service, every_s: float) -> None:
    try:
        await run_in_threadpool(sweep, service.store, service.config, time.time())
    except Exception:  # whatever it is: requests are answered all the same, and the next sweep may do
        logger.exception("what is too old cannot be removed now; trying again in %.0f s", every_s)
