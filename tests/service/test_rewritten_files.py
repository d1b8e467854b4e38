"""A resumed run begins metrics.jsonl anew: pages and streams lose no record, and the clients give none twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from drumline import AsyncClient, Client
from drumline.jobs.keeper_files import log_of, run_of
from drumline.jobs.records import Job
from drumline.rundir import LineWriter, keep_lines
from drumline.service import calls
from drumline.service.state import Service
from tests.service.real_server import served
from tests.service.services import add_job, config

Place = tuple[str, Service]
BEFORE = [1, 2, 3, 4, 5]
AFTER = [4, 5, 6, 7]
"""Steps after going on from a checkpoint of step 3."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served(config(tmp_path_factory.mktemp("service"))) as found:
        yield found


def with_metrics(service: Service) -> tuple[Job, Path]:
    job = add_job(service, state="running")
    metrics = run_of(service.board.folder(job)).metrics
    metrics.parent.mkdir()
    write(metrics, BEFORE, 0)
    return job, metrics


def write(metrics: Path, steps: list[int], attempt: int, **more: Any) -> None:
    writer = LineWriter(metrics)
    for step in steps:
        writer.write({"time": 100.0 * attempt + step, "step": step, "loss": float("nan"), **more})
    writer.close()


def go_on(service: Service, job: Job, metrics: Path) -> None:
    """What a resumed run does: its lines are longer now, so that the file is too."""
    keep_lines(metrics, lambda record: record["step"] <= 3)
    write(metrics, AFTER, 1, text="x" * 50)
    service.store.jobs.update(job.id, lambda found: replace(found, state="succeeded", ended=time.time()))


def test_a_page_after_a_place_in_the_old_file_begins_with_the_new_one(place: Place) -> None:
    url, service = place
    job, metrics = with_metrics(service)
    path = f"{url}/jobs/{job.id}/metrics"
    first = httpx.get(path, params={"limit": 4}).json()
    assert [record["step"] for record in first["records"]] == [1, 2, 3, 4] and not first["rewritten"]
    assert httpx.get(path, params={"after": first["next"]}).json()["records"][0]["step"] == 5
    go_on(service, job, metrics)
    second = httpx.get(path, params={"after": first["next"]}).json()
    assert [record["step"] for record in second["records"]] == [1, 2, 3, *AFTER]
    assert second["rewritten"] and second["done"]
    bare = httpx.get(path, params={"after": first["next"].partition(":")[0]}).json()
    assert not bare["rewritten"]  # a number says nothing of the file


@pytest.mark.parametrize("after", ["-1", "1.5", "1:", ":1", "1:2:3", "x", "1 ", "9" * 21])
def test_what_is_no_place_is_refused(place: Place, after: str) -> None:
    url, service = place
    answer = httpx.get(f"{url}/jobs/{add_job(service).id}/metrics", params={"after": after})
    assert answer.status_code == 422 and answer.json()["code"] == "invalid"


def steps(records: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in records]


@pytest.mark.parametrize("follow", [True, False])
def test_the_client_gives_what_was_made_again_and_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    monkeypatch.setattr(calls, "PAGE", 2)
    url, service = place
    job, metrics = with_metrics(service)
    with Client(url) as client:
        records = client.metrics(job.id, follow=follow)
        found = [next(records) for _ in range(3)]
        go_on(service, job, metrics)
        found += list(records)
    made_again = [record for record in found if "text" in record]
    assert steps(made_again) == AFTER and found[-len(AFTER) :] == made_again
    # What was sent or asked for before the file began anew may still come: once.
    assert steps(found[: -len(AFTER)]) in ([1, 2, 3], [1, 2, 3, 4], BEFORE)


@pytest.mark.parametrize("follow", [True, False])
def test_so_does_the_one_that_awaits(place: Place, monkeypatch: pytest.MonkeyPatch, follow: bool) -> None:
    monkeypatch.setattr(calls, "PAGE", 2)
    url, service = place
    job, metrics = with_metrics(service)

    async def use() -> list[dict[str, Any]]:
        found = []
        async with AsyncClient(url) as client:
            async for record in client.metrics(job.id, follow=follow):
                found.append(record)
                if len(found) == 3:
                    go_on(service, job, metrics)
        return found

    found = asyncio.run(use())
    assert steps(found[-len(AFTER) :]) == AFTER and all("text" in record for record in found[-len(AFTER) :])
    assert steps(found[: -len(AFTER)]) in ([1, 2, 3], [1, 2, 3, 4], BEFORE)


def test_a_log_has_a_tail(place: Place) -> None:
    url, service = place
    job = add_job(service, state="running")
    lines = [f"line {number}" for number in range(500)]
    log_of(service.board.folder(job)).write_text("\n".join(lines) + "\n")
    path = f"{url}/jobs/{job.id}/logs"
    page = httpx.get(path, params={"tail": 300, "limit": 200}).json()
    assert page["lines"] == lines[-300:-100]
    # `after` says where to go on, whatever else is said.
    assert httpx.get(path, params={"tail": 300, "after": page["next"]}).json()["lines"] == lines[-100:]
    assert httpx.get(path, params={"tail": 0}).status_code == 422
    assert httpx.get(path, params={"tail": 10_001}).status_code == 422
    with Client(url) as client:
        assert list(client.logs(job.id, tail=300)) == lines[-300:]
        followed = client.logs(job.id, tail=2, follow=True)
        assert [next(followed), next(followed)] == lines[-2:]
        with log_of(service.board.folder(job)).open("a") as file:
            file.write("new\nhalf")
        assert next(followed) == "new"
        service.store.jobs.update(job.id, lambda found: replace(found, state="failed", ended=time.time()))
        assert list(followed) == ["half"] and list(client.logs(job.id, tail=2)) == ["new", "half"]


def test_a_stream_of_a_tail_that_broke_goes_on_where_it_was(place: Place) -> None:
    url, service = place
    job = add_job(service, state="failed")
    log_of(service.board.folder(job)).write_text("a\nb\nc\nd\n")
    stream = {"Accept": "text/event-stream"}
    text = httpx.get(f"{url}/jobs/{job.id}/logs", params={"tail": 3}, headers=stream).text
    lines = [json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: "')]
    ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
    assert lines == ["b", "c", "d"]
    again = httpx.get(f"{url}/jobs/{job.id}/logs", params={"tail": 3}, headers={**stream, "Last-Event-ID": ids[1]}).text
    assert [json.loads(line[6:]) for line in again.splitlines() if line.startswith('data: "')] == ["d"]
