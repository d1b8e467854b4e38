"""A real prediction as a job: cancelled and gone on with as a new one, stopped with its service, and the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import FilesConfig, SchedulingConfig, ServiceConfig
from drumline.jobs.board import Board
from drumline.jobs.devices import slots
from drumline.jobs.executor import Executor
from drumline.jobs.keeper_files import log_of
from drumline.jobs.records import Inventory, Job
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.store import Store, open_store, store_url
from drumline.jobs.supervisor import Supervisor
from drumline.rundir import read_lines
from tests.tiny_models import save_llama

pytestmark = pytest.mark.system

ADA = Who("ada")
NUM_ROWS = 600
"""More than are answered between two looks at a job."""
LIMIT_S = 180.0


@dataclass
class Opened:
    """A service without HTTP."""

    config: ServiceConfig
    store: Store
    board: Board
    supervisor: Supervisor

    def begin(self) -> None:
        """Another supervisor, in the place of one that has ended."""
        inventory = lambda: Inventory("here", time.time(), slots(2))  # noqa: E731
        self.supervisor = Supervisor(self.store, Executor(self.config.data_dir), inventory, self.config)
        self.supervisor.start()

    def submit(self, **says: Any) -> Job:
        rows = [{"id": number, "text": f"row {number}: " + "sea " * (number % 13)} for number in range(NUM_ROWS)]
        rows[7] = {"id": 7, "words": "no text"}
        task = {"kind": "generate", "max_new_tokens": 12, "prompt": {"prompt": "Go on: {text}"}}
        asked = {"kind": "infer", "model_name": "tiny", "texts": rows, "columns": {"id": "id"}, "task": task}
        return self.board.submit(
            JobRequest.model_validate({**asked, "settings": {"batching.tokens": 256}, **says}), ADA
        )

    def until(self, job: Job, holds: Callable[[Job], bool]) -> Job:
        limit = time.monotonic() + LIMIT_S
        while not holds(found := self.board.get(job.id, ADA)):
            said = log_of(self.board.folder(job))
            assert time.monotonic() < limit and not found.has_ended, said.read_text() if said.is_file() else found
            time.sleep(0.05)
        return found

    def answers(self, job: Job) -> bytes:
        found = self.until(job, lambda found: found.state == "succeeded")
        assert (found.result["rows"], found.result["rows_failed"]) == (NUM_ROWS, 1)
        assert (found.progress["rows_done"], found.progress["rows_total"]) == (NUM_ROWS, NUM_ROWS)
        return Path(found.result["output_path"]).read_bytes()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Opened]:
    model = save_llama(tmp_path / "model")
    files, scheduling = FilesConfig(model_names={"tiny": model}), SchedulingConfig(stop_grace_s=60.0)
    config = ServiceConfig(data_dir=tmp_path / "data", node="here", files=files, scheduling=scheduling)
    store = open_store(store_url(config))
    opened = Opened(config, store, Board(store, config), None)  # type: ignore[arg-type]
    opened.begin()
    try:
        yield opened
    finally:
        opened.supervisor.close(stop_jobs=True)
        store.close()


def test_it_is_the_same_whatever_stops_it(service: Opened) -> None:
    one, two = {"devices": 1}, {"devices": 2}
    whole = service.submit(resources=one)
    expected = service.answers(whole)
    rows = list(read_lines(Path(service.board.get(whole.id, ADA).result["output_path"])))
    assert [row["id"] for row in rows] == list(range(NUM_ROWS))
    assert [row["id"] for row in rows if row["error"] is not None] == [7]

    first = service.submit(resources=two)
    service.until(first, lambda job: job.progress.get("rows_done", 0) > 0)
    service.board.cancel(first.id, ADA)
    cancelled = service.until(first, lambda job: job.state == "cancelled")
    done = cancelled.progress["rows_done"]
    assert 0 < done < NUM_ROWS and cancelled.result["output_path"] is None
    second = service.board.retry(first.id, ADA, from_checkpoint=True)
    service.until(second, lambda job: job.progress.get("rows_done", 0) >= done)
    service.supervisor.close(stop_jobs=True)
    stopped = service.board.get(second.id, ADA)
    assert (stopped.state, stopped.reason) == ("queued", "preempted") or stopped.state == "succeeded"
    service.begin()
    assert service.answers(second) == expected
