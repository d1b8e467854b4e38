"""The client against a real server: jobs, lists, keys, logs that grow, and the same for the one that awaits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline import AsyncClient, Client
from drumline.errors import ConfigError, Forbidden, IdempotencyConflict, NotFound, RemoteError, Unauthorized
from drumline.jobs.keeper_files import log_of, run_of
from drumline.jobs.records import Job
from drumline.service import calls
from drumline.service.state import Service
from tests.service.real_server import served
from tests.service.services import KEYED, add_job, bearer, config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    """A service without keys, for all tests here."""
    with served(config(tmp_path_factory.mktemp("service"), prefix="/api")) as found:
        yield found


def with_log(service: Service, lines: str, **values: Any) -> Job:
    """A job that has written a log and metrics."""
    job = add_job(service, **values)
    folder = service.board.folder(job)
    log_of(folder).write_text(lines, encoding="utf-8")
    run_of(folder).path.mkdir()
    run_of(folder).metrics.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": 0.5}\n')
    return job


def end(service: Service, job_id: str) -> None:
    """Let a job have succeeded."""
    service.store.jobs.update(job_id, lambda job: replace(job, state="succeeded", ended=time.time()))


def soon(do: Callable[[], None]) -> threading.Thread:
    """Do something while the test waits for it."""
    thread = threading.Timer(0.15, do)
    thread.start()
    return thread


def test_a_job_is_submitted_seen_listed_and_cancelled(place: tuple[str, Service]) -> None:
    with Client(place[0]) as client:
        made = client.finetune("tiny", ["one", "two"], {"epochs": 1}, name="first", tags=["ads"])
        assert (made.state, made.name, made.model_name, made.owner) == ("queued", "first", "tiny", "local")
        assert client.get(made.id).resources.priority == 0
        assert [job.id for job in client.list(tag="ads", state=["queued"])] == [made.id]
        cancelled = client.cancel(made.id)
        assert cancelled.state == "cancelled" and client.wait(made.id, 5).success is False
        again = client.retry(made.id)
        assert again.retry_of == made.id and again.id != made.id
        client.cancel(again.id)
        client.delete_data(made.id)


def test_the_same_key_makes_the_same_job(place: tuple[str, Service]) -> None:
    request = {"model_name": "tiny", "texts": ["a"]}
    with Client(place[0]) as client:
        first = client.submit(request, idempotency_key="once")
        assert client.submit(request, idempotency_key="once").id == first.id
        assert client.submit(request).id != first.id
        with pytest.raises(IdempotencyConflict):
            client.submit({**request, "texts": ["b"]}, idempotency_key="once")


def test_a_list_goes_on_over_its_pages(place: tuple[str, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAGE", 3)
    made = {add_job(place[1], state="failed", tags=("many",)).id for _ in range(8)}
    with Client(place[0]) as client:
        listed = [job.id for job in client.list(tag="many")]
    assert len(listed) == 8 and set(listed) == made


def test_errors_are_the_services_own(place: tuple[str, Service]) -> None:
    with Client(place[0]) as client:
        with pytest.raises(NotFound, match="job-none"):
            client.get("job-none")
        with pytest.raises(ConfigError, match="no model 'gpt9'"):
            client.finetune("gpt9", ["a"])
        with pytest.raises(RemoteError) as caught:
            client.submit({"kind": "dance"})
        assert caught.value.status == 422 and "kind" in caught.value.problem


def test_keys_decide(tmp_path: Path) -> None:
    with served(config(tmp_path, access=KEYED)) as (url, service):
        keys = {owner: bearer(service, owner)["Authorization"].split()[1] for owner in ("ann", "bob")}
        (tmp_path / "key").write_text(keys["ann"] + "\n")
        with Client(url, key_file=tmp_path / "key") as ann, Client(url, keys["bob"]) as bob, Client(url) as nobody:
            made = ann.finetune("tiny", ["a"])
            assert [job.id for job in ann.list()] == [made.id] and list(bob.list()) == []
            with pytest.raises(NotFound):
                bob.cancel(made.id)
            with pytest.raises(Unauthorized):
                list(nobody.list())
        viewer = bearer(service, "ann", "viewer")["Authorization"].split()[1]
        with Client(url, viewer) as reader, pytest.raises(Forbidden):
            reader.cancel(made.id)


def test_files_come_whole_and_page_by_page(place: tuple[str, Service]) -> None:
    lines = [f"line {number} \u2028 caf\u00e9" for number in range(450)]
    job = with_log(place[1], "\n".join(lines) + "\n", state="succeeded")
    with Client(place[0]) as client:
        assert list(client.logs(job.id)) == lines
        assert list(client.logs(job.id, follow=True)) == lines
        assert list(client.logs(job.id, source="rank_0")) == []
        assert list(client.metrics(job.id)) == [{"step": 1, "loss": None}, {"step": 2, "loss": 0.5}]
        assert list(client.metrics(job.id, follow=True)) == [{"step": 1, "loss": None}, {"step": 2, "loss": 0.5}]
        assert list(client.events(job.id, follow=True)) == []


def test_a_log_is_followed_to_its_last_line(place: tuple[str, Service]) -> None:
    url, service = place
    job = with_log(service, "one\n", state="running")
    log = log_of(service.board.folder(job))

    def finish() -> None:
        with log.open("a") as file:
            file.write("two\nhalf")
        end(service, job.id)

    with Client(url) as client:
        followed = client.logs(job.id, follow=True)
        assert next(followed) == "one"
        thread = soon(finish)
        assert list(followed) == ["two", "half"]
        thread.join()


def test_a_job_is_waited_for(place: tuple[str, Service]) -> None:
    url, service = place
    job = add_job(service, state="running")
    seen: list[str] = []
    with Client(url) as client:
        with pytest.raises(RemoteError, match=r"is running after 0\.05 s"):
            client.wait(job.id, 0.05)
        thread = soon(lambda: end(service, job.id))
        ended = client.wait(job.id, 30, lambda looked: seen.append(looked.state))
        thread.join()
    assert ended.state == "succeeded" and set(seen) == {"running"}


def test_the_one_that_awaits_does_the_same(place: tuple[str, Service]) -> None:
    url, service = place
    lines = [f"line {number}" for number in range(250)]
    job = with_log(service, "\n".join(lines) + "\n", state="running")

    async def use() -> None:
        async with AsyncClient(url) as client:
            made = await client.finetune("tiny", ["a"], tags=["async"])
            assert [found.id async for found in client.list(tag="async")] == [made.id]
            assert (await client.cancel(made.id)).state == "cancelled"
            assert (await client.retry(made.id)).retry_of == made.id
            await client.delete_data(made.id)
            with pytest.raises(NotFound):
                await client.get("job-none")
            assert [line async for line in client.logs(job.id)] == lines
            thread = soon(lambda: end(service, job.id))
            followed = [line async for line in client.logs(job.id, follow=True)]
            ended = await client.wait(job.id, 30)
            thread.join()
            assert followed == lines and ended.success is True
            assert [record["step"] async for record in client.metrics(job.id, follow=True)] == [1, 2]
            assert [record async for record in client.events(job.id)] == []

    asyncio.run(use())
