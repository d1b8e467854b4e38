"""Lists of jobs: as the jobs are now, though most of their JSON is kept, and made by few threads at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from drumline.jobs.records import Job, Resources
from drumline.service.state import READERS, Service
from drumline.service.views import job_values
from tests.service.real_server import served
from tests.service.services import add_job, config, finetune

Place = tuple[str, Service]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served(config(tmp_path_factory.mktemp("service"))) as found:
        yield found


def listed(url: str) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for item in httpx.get(f"{url}/jobs").raise_for_status().json()["items"]}


def test_what_changes_in_a_job_changes_in_the_list(place: Place) -> None:
    url, service = place
    made = [add_job(service, state=state) for state in ("queued", "running", "failed")]
    waits, runs, _ = made
    for _ in range(2):
        places, found = service.board.queue.places(made), listed(url)
        assert set(found) == {job.id for job in made}
        for job in made:
            now = service.store.jobs.get(job.id)
            assert now is not None and found[job.id] == job_values(now, "", places.get(job.id))
    assert found[waits.id]["position"] == 1

    # Neither of these changes a job's version.
    with service.store.change() as change:
        change.tell_waits({waits.id: "its turn"})
    assert service.store.jobs.tell_progress(runs.id, runs.attempt, {"step": 7})
    found = listed(url)
    assert found[waits.id]["waits_for"] == "its turn" and found[runs.id]["progress"]["step"] == 7

    # What a job asks for is written once, so that another one takes its place.
    first = Job("job-first", "local", waits.work, Resources(devices=1, priority=9), waits.created, node=service.node)
    service.store.jobs.add(first)
    found = listed(url)
    assert (found[first.id]["position"], found[waits.id]["position"]) == (1, 2)


def test_few_threads_read_the_store_and_the_others_are_not_kept_waiting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, service = place
    find, lock, go_on = service.board.find, threading.Lock(), threading.Event()
    inside, most = 0, 0

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        assert go_on.wait(20)
        with lock:
            inside -= 1
        return find(*arguments, **options)

    monkeypatch.setattr(service.board, "find", slow)
    with ThreadPoolExecutor(4 * READERS) as pool:
        asked = [pool.submit(httpx.get, f"{url}/jobs", timeout=30) for _ in range(4 * READERS)]
        limit = time.monotonic() + 10
        while most < READERS and time.monotonic() < limit:
            time.sleep(0.01)
        assert httpx.get(f"{url}/multigpu/health", timeout=10).status_code == 200
        assert httpx.post(f"{url}/jobs", json=finetune(), timeout=10).status_code == 202
        go_on.set()
        assert {answer.result().status_code for answer in asked} == {200}
    assert most == READERS
