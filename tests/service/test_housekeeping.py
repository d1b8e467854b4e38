"""What is kept for a while only is removed, at the start of the service and again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from drumline.errors import StoreError
from drumline.jobs.store import Idempotency, JobFilter
from drumline.service import housekeeping
from drumline.service.housekeeping import IDEMPOTENCY_S, kept_house, sweep
from drumline.service.opening import open_service
from drumline.service.state import Service
from tests.service.services import add_job, config, finetune, running

DAY_S = 86_400.0


def test_keys_of_requests_and_what_was_noted_are_forgotten_by_age(tmp_path: Path) -> None:
    settings = config(tmp_path, access={"audit_days": 30})
    with running(settings) as (_, service):
        now = time.time()
        job = add_job(service)
        made = {}
        for name, age_s in (("old", IDEMPOTENCY_S + 60), ("young", IDEMPOTENCY_S - 60)):
            made[name] = Idempotency("local", name, "digest")
            service.store.jobs.add(replace(job, id=f"job-{name}", created=now - age_s), made[name])
        for days in (31, 29):
            service.store.log.audit("job.cancel", "local", f"{days} days ago", now - days * DAY_S)
        sweep(service.store, service.config, now)
        assert service.store.jobs.added_before(made["old"]) is None
        kept = service.store.jobs.added_before(made["young"])
        assert kept is not None and kept.id == "job-young"
        assert [each.what for each in service.store.log.audits().items] == ["29 days ago"]
        assert service.store.jobs.find(JobFilter()).total == 3  # no job goes


def test_a_service_sweeps_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    with running(settings) as (client, _):
        body = {name: value for name, value in finetune().items() if name == "model_name"}
        asked = {**body, "dataset_config": {"texts": ["one text"]}}
        plan = client.post("/multigpu/training/config", json=asked).json()["config_id"]
    later = time.time() + 8 * DAY_S
    monkeypatch.setattr(housekeeping, "time", SimpleNamespace(time=lambda: later))
    with running(settings) as (client, service):
        assert service.store.settings.get("plan", plan) is None
        assert not list((service.config.data_dir / "plans").iterdir())
        gone = client.post("/multigpu/training/auto", json={"config_id": plan})
        assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


def test_it_sweeps_again_also_after_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = open_service(config(tmp_path), supervise=False)
    swept: list[float] = []

    def failing(before: float) -> int:
        swept.append(before)
        if len(swept) == 1:
            raise StoreError("the disk is away", "bring it back")
        return 0

    monkeypatch.setattr(service.store.log, "forget", failing)
    try:
        asyncio.run(_until(lambda: len(swept) >= 3, service))
    finally:
        service.close()


async def _until(is_so: Callable[[], bool], service: Service) -> None:
    async with kept_house(service, every_s=0.01):
        limit = time.monotonic() + 20
        while not is_so() and time.monotonic() < limit:
            await asyncio.sleep(0.01)
    assert is_so()
