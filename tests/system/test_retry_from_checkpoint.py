"""A real training that is cancelled, and a new job that goes on where it stood."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.config.service import SchedulingConfig, ServiceConfig
from drumline.jobs.board import Board
from drumline.jobs.devices import slots
from drumline.jobs.executor import Executor
from drumline.jobs.records import Inventory
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.retry_folder import has_checkpoint
from drumline.jobs.store import open_store, store_url
from drumline.jobs.supervisor import Supervisor
from drumline.rundir import read_lines

pytestmark = pytest.mark.system

ADA = Who("ada")
RUN = {
    "model": {"kind": "decoder", "num_layers": 1, "num_heads": 2, "width": 16},
    "data": {"kind": "random_tokens", "num_rows": 64, "vocab_size": 64, "context": 16},
    "train": {"global_batch": 4, "max_steps": 100_000},
    "checkpoint": {"every": 20},
    "track": {"every": 5},
}


def until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.1)


def test_a_cancelled_job_is_gone_on_with_as_a_new_one(tmp_path: Path) -> None:
    config = ServiceConfig(data_dir=tmp_path, node="here", scheduling=SchedulingConfig(stop_grace_s=30.0))
    store = open_store(store_url(config))
    supervisor = Supervisor(store, Executor(tmp_path), lambda: Inventory("here", time.time(), slots(1)), config)
    board = Board(store, config, supervisor.wake)
    supervisor.start()
    try:
        first = board.submit(JobRequest.model_validate({"kind": "train", "config": RUN}), ADA)
        until(lambda: has_checkpoint(board.folder(first)))
        board.cancel(first.id, ADA)
        until(lambda: board.get(first.id, ADA).has_ended)
        assert board.get(first.id, ADA).state == "cancelled"
        before = [line["step"] for line in read_lines(board.folder(first) / "run" / "metrics.jsonl")]

        second = board.retry(first.id, ADA, from_checkpoint=True)
        metrics = board.folder(second) / "run" / "metrics.jsonl"
        until(lambda: len(list(read_lines(metrics))) > len(before) + 2)
        board.cancel(second.id, ADA)
        until(lambda: board.get(second.id, ADA).has_ended)
        steps = [line["step"] for line in read_lines(metrics)]
        assert steps[: len(before)] == before and steps == sorted(set(steps)), "it neither began anew nor repeated"
        assert board.get(second.id, ADA).attempt == 1 and not store.leases.all("here")
    finally:
        supervisor.close(stop_jobs=True)
        store.close()
