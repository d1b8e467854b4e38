"""The parts of the clients besides jobs: settings, checkpoints, the machine, defaults, plans, history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from drumline import AsyncClient, Client
from drumline.errors import ConfigError, NotFound
from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Work
from drumline.service.state import Service
from tests.service.real_server import served
from tests.service.services import add_job, config

Place = tuple[str, Service]
PLAN = {"model_name": "tiny", "dataset_config": {"texts": ["a", "b"]}, "training_config": {"epochs": 2}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served(config(tmp_path_factory.mktemp("service"), prefix="/api")) as found:
        yield found


def test_a_runs_settings_and_checkpoints_are_records(place: Place) -> None:
    url, service = place
    job = add_job(service, state="running", work=Work("train", {"train": {"epochs": 3}}))
    run = run_of(service.board.folder(job))
    run.checkpoint_of(5).mkdir(parents=True)
    (run.checkpoint_of(5) / "manifest.json").write_text("{}")
    run.config.write_text("train: {epochs: 3, lr: 0.1}\n")
    with Client(url) as client:
        settings = client.runs.config(job.id)
        assert settings.requested == {"train": {"epochs": 3}} and settings.plan is None
        assert settings.config == {"train": {"epochs": 3, "lr": 0.1}}
        assert [(one.step, one.bytes) for one in client.runs.checkpoints(job.id)] == [(5, 2)]
        with pytest.raises(NotFound):
            client.runs.config("job-none")


def test_the_machine_and_what_later_trainings_take(place: Place) -> None:
    with Client(place[0]) as client:
        machine = client.multigpu
        assert {check.name for check in machine.health().checks} >= {"store", "disk"}
        stats = machine.stats()
        assert stats.gpu_count == len(stats.gpu_info) and stats.gpu_source
        before = machine.get_config()
        changed = machine.set_config(batch_size_per_gpu=3)
        assert (changed.config.batch_size_per_gpu, changed.version) == (3, before.version + 1)
        assert machine.set_config(mixed_precision=False).config.batch_size_per_gpu == 3
        assert machine.get_config().version == changed.version + 1


def test_a_training_is_checked_and_those_that_were_are_compared(place: Place) -> None:
    url, service = place
    works = [Work("train", {"train": {"lr": lr}}) for lr in (0.1, 0.2)]
    jobs = [add_job(service, state="succeeded", work=work, tags=("compared",)) for work in works]
    with Client(url) as client:
        planned = client.multigpu.training_config(PLAN)
        assert planned.config_id and planned.links.start == "/api/multigpu/training/auto"
        found = client.multigpu.history(tag="compared", limit=1, compare=[job.id for job in jobs])
        assert (found.total, len(found.items)) == (2, 1) and found.comparison is not None
        assert found.comparison.differences == {"train.lr": {jobs[0].id: 0.1, jobs[1].id: 0.2}}
        assert client.multigpu.history(state=["lost"]).comparison is None


def test_a_plan_is_started_once_and_the_machine_is_looked_after(place: Place) -> None:
    with Client(place[0]) as client:
        machine = client.multigpu
        planned = machine.training_config(PLAN)
        job = machine.start({"config_id": planned.config_id, "user_id": "u1"})
        assert job.state == "queued" and machine.resources().queue.total >= 1
        with pytest.raises(NotFound):
            machine.start({"config_id": planned.config_id, "user_id": "u1"})
        client.cancel(job.id)
        assert machine.manage("cleanup").action == "cleanup"
        assert machine.performance(days=1).days
        assert machine.recommendations().model_dump()
        other = machine.training_config(PLAN)
        machine.delete_plan(other.config_id)
        with pytest.raises(NotFound):
            machine.start({"config_id": other.config_id, "user_id": "u1"})
        for absent in (99, "GPU-none"):
            with pytest.raises(NotFound):
                machine.gpu(absent)
        with pytest.raises(ConfigError):
            machine.gpu("../../keys")
        assert machine.test_gpus(gpu_ids=[99]).tested == []


def test_keys_are_made_told_once_and_revoked(place: Place) -> None:
    with Client(place[0]) as client:
        made = client.admin.create_key("ann", name="laptop", expires_in_days=1)
        assert made.key.startswith("dl_") and made.role == "user"
        assert [key.id for key in client.admin.keys(owner="ann", valid=True).items] == [made.id]
        client.admin.revoke_key(made.id)
        assert client.admin.keys(owner="ann", valid=True).items == []
        done = client.admin.audit(event=["key_created", "key_revoked"], limit=2).items
        assert [entry.event for entry in done] == ["key_revoked", "key_created"] and made.id in done[0].what
        with pytest.raises(NotFound):
            client.admin.revoke_key("key-none")


def test_the_one_that_awaits_does_the_same(place: Place) -> None:
    url, service = place
    job = add_job(service, state="running", work=Work("train", {"train": {"epochs": 3}}))

    async def use() -> None:
        async with AsyncClient(url) as client:
            assert (await client.runs.config(job.id)).requested == {"train": {"epochs": 3}}
            assert await client.runs.checkpoints(job.id) == []
            machine = client.multigpu
            assert (await machine.health()).checks and (await machine.stats()).gpu_source
            assert (await machine.set_config(batch_size_per_gpu=5)).config.batch_size_per_gpu == 5
            assert (await machine.get_config()).config.batch_size_per_gpu == 5
            planned = await machine.training_config(PLAN)
            await machine.delete_plan(planned.config_id)
            with pytest.raises(NotFound):
                await machine.delete_plan(planned.config_id)
            assert (await machine.history(compare=[job.id])).comparison is not None
            started = await machine.start(PLAN | {"user_id": "u1"}, strategy="dataparallel")
            assert (await machine.resources()).queue.total >= 1 and (await client.cancel(started.id)).id
            assert (await machine.manage("monitor")).action == "monitor"
            assert (await machine.performance()).days and (await machine.recommendations()).model_dump()
            with pytest.raises(NotFound):
                await machine.gpu(99)
            assert (await machine.test_gpus(gpu_ids=[99])).tested == []
            made = await client.admin.create_key("bob")
            await client.admin.revoke_key(made.id)
            assert [key.id for key in (await client.admin.keys(owner="bob")).items] == [made.id]
            assert (await client.admin.audit(limit=1)).items[0].event == "key_revoked"

    asyncio.run(use())
