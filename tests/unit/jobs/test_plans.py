"""Plans: for how long they are kept, and that each with texts becomes one job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import ServiceConfig
from drumline.errors import DrumlineError, NotFound, Quota
from drumline.jobs.board import Board
from drumline.jobs.plans import KEPT_S, Plans, remove_expired
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.store import Idempotency, Store
from tests.fresh_store import fresh_store

ADA = Who("ada")
DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = fresh_store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def board(store: Store, tmp_path: Path) -> Board:
    model = tmp_path / "gpt2"
    model.mkdir()
    files = {"model_names": {"gpt2": model}}
    return Board(
        store, ServiceConfig.model_validate({"data_dir": tmp_path, "files": files, "limits": {"max_queued": 3}})
    )


def request(**says: Any) -> JobRequest:
    return JobRequest.model_validate({"model_name": "gpt2", "texts": ["a text"], **says})


def start(board: Board, plan_id: str, idempotency: Idempotency | None = None) -> str:
    plan = board.planned(plan_id, ADA)
    return board.submit(plan.request, ADA, idempotency, defaults_version=plan.defaults_version, plan_id=plan_id).id


def test_a_plan_that_is_too_old_is_not_there_whoever_sweeps(board: Board, store: Store, tmp_path: Path) -> None:
    plan = board.plan(request(), ADA)
    later = [plan.created + KEPT_S]
    plans = Plans(store, tmp_path / "plans", clock=lambda: later[0])
    assert plans.read(plan.id, lambda owner: True).request.texts == [{"text": "a text"}]
    later[0] += 1
    with pytest.raises(NotFound, match="older than 7 days"):
        plans.read(plan.id, lambda owner: True)


def test_rows_and_texts_of_old_plans_are_removed_and_others_stay(board: Board, store: Store, tmp_path: Path) -> None:
    old, bare = board.plan(request(), ADA), board.plan(request(texts=None), ADA)
    young = board.plan(request(), ADA)
    for plan, days in ((old, 8), (young, 6)):
        then = time.time() - days * DAY_S
        os.utime(tmp_path / "plans" / plan.id, (then, then))
    store.settings.put("defaults", {"batch_size_per_gpu": 2}, "root")
    remove_expired(store, tmp_path / "plans", time.time())
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [young.id]
    assert all(store.settings.get("plan", plan.id) for plan in (old, bare, young))
    remove_expired(store, tmp_path / "plans", time.time() + 8 * DAY_S)
    assert not list((tmp_path / "plans").iterdir())
    assert not any(store.settings.get("plan", plan.id) for plan in (old, bare, young))
    assert store.settings.latest("defaults") is not None


def test_of_many_starts_of_one_plan_at_once_one_makes_a_job(board: Board, store: Store, tmp_path: Path) -> None:
    plan, together = board.plan(request(), ADA), threading.Barrier(3)

    def started() -> str:
        read = board.planned(plan.id, ADA)
        together.wait(20)  # all of them have read it before any submits
        try:
            return board.submit(read.request, ADA, plan_id=plan.id).id
        except DrumlineError as error:
            return error.code

    with ThreadPoolExecutor(3) as pool:
        found = sorted(each.result() for each in [pool.submit(started) for _ in range(3)])
    assert found[1:] == ["not_found", "not_found"]
    assert store.jobs.counts() == {"queued": 1}
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == found[:1]
    assert not list((tmp_path / "plans").iterdir())


def test_a_start_that_is_refused_leaves_the_plan_as_it_was(board: Board, store: Store) -> None:
    plan = board.plan(request(), ADA)
    waiting = [board.submit(request(), ADA).id for _ in range(3)]
    with pytest.raises(Quota):
        start(board, plan.id)
    board.cancel(waiting[0], ADA)
    assert start(board, plan.id) not in waiting


def test_a_start_that_is_sent_again_with_its_key_is_the_same_job(board: Board, store: Store) -> None:
    plan, once = board.plan(request(), ADA), Idempotency("ada", "once", "digest")
    read = board.planned(plan.id, ADA)
    first = start(board, plan.id, once)
    # As of a call that had read the plan before it was gone.
    assert board.submit(read.request, ADA, once, plan_id=plan.id).id == first
    assert store.jobs.counts() == {"queued": 1}
