"""Plans: for how long they are kept, and that each with texts becomes one job."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import ServiceConfig
from drumline.errors import Conflict, DrumlineError, NotFound, Quota, StoreError
from drumline.jobs.board import Board
from drumline.jobs.plans import KEPT_S, Plans, PlanView, remove_expired
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


def folder_of(plan: PlanView) -> Path:
    assert plan.texts is not None
    return plan.texts.parent


def start(board: Board, plan_id: str, idempotency: Idempotency | None = None) -> str:
    plan = board.planned(plan_id, ADA)
    return board.submit(plan.request, ADA, idempotency, defaults_version=plan.defaults_version, plan=plan).id


def test_a_plan_that_is_too_old_is_not_there_whoever_sweeps(board: Board, store: Store, tmp_path: Path) -> None:
    plan = board.plan(request(), ADA)
    later = [plan.created + KEPT_S]
    plans = Plans(store, tmp_path / "plans", "here", clock=lambda: later[0])
    assert plans.read(plan.id, lambda owner: True).request.texts == [{"text": "a text"}]
    later[0] += 1
    with pytest.raises(NotFound, match="older than 7 days"):
        plans.read(plan.id, lambda owner: True)


def test_rows_and_texts_of_old_plans_are_removed_and_others_stay(board: Board, store: Store, tmp_path: Path) -> None:
    old, bare = board.plan(request(), ADA), board.plan(request(texts=None), ADA)
    young = board.plan(request(), ADA)
    for plan, days in ((old, 8), (young, 6)):
        then = time.time() - days * DAY_S
        os.utime(folder_of(plan), (then, then))
    store.settings.put("defaults", {"batch_size_per_gpu": 2}, "root")
    removed = [folder_of(old)]
    assert remove_expired(store, tmp_path / "plans", time.time()) == removed
    assert list((tmp_path / "plans").iterdir()) == [folder_of(young)]
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
            return board.submit(read.request, ADA, plan=read).id
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
    assert board.submit(read.request, ADA, once, plan=read).id == first
    assert store.jobs.counts() == {"queued": 1}


@pytest.fixture
def other(board: Board, store: Store, tmp_path: Path) -> Board:
    """Of another machine, on the same store."""
    files = {"model_names": {"gpt2": tmp_path / "gpt2"}}
    return Board(store, ServiceConfig.model_validate({"data_dir": tmp_path / "other", "files": files, "node": "far"}))


def test_texts_on_another_machine_are_named_there_and_neither_started_nor_removed(
    board: Board, other: Board, store: Store, tmp_path: Path
) -> None:
    plan = other.plan(request(), ADA)
    for do in (board.planned, board.drop_plan):
        with pytest.raises(Conflict, match=f"the texts of {plan.id} lie on far"):
            do(plan.id, ADA)
    assert folder_of(plan).is_dir() and other.planned(plan.id, ADA).request.texts == [{"text": "a text"}]
    other.drop_plan(plan.id, ADA)
    assert not folder_of(plan).exists() and store.settings.get("plan", plan.id) is None
    bare = other.plan(request(texts=None), ADA)
    assert board.planned(bare.id, ADA).folder is None  # nothing of it lies anywhere
    board.drop_plan(bare.id, ADA)
    assert store.settings.get("plan", bare.id) is None


def test_a_key_never_gives_a_plan_whose_texts_are_gone(board: Board, other: Board, store: Store) -> None:
    once = Idempotency("ada", "once", "digest")
    plan = board.plan(request(), ADA, once)
    assert (plan.is_new, board.plan(request(), ADA, once).is_new) == (True, False)
    assert other.plan(request(), ADA, once).id == plan.id  # what became of its texts is not seen from there
    board.drop_plan(plan.id, ADA)
    anew = board.plan(request(), ADA, once)
    assert (anew.id, anew.is_new, folder_of(anew) == folder_of(plan)) == (plan.id, True, False)
    shutil.rmtree(folder_of(anew))
    assert board.plan(request(), ADA, once).is_new
    assert start(board, plan.id)


def test_a_plan_whose_commit_answered_nothing_is_made_anew(
    board: Board, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put, once = store.settings.put, Idempotency("ada", "once", "digest")

    def put_and_lose(*args: Any, **more: Any) -> None:
        put(*args, **more)
        raise StoreError("the connection was lost", "try again")

    with monkeypatch.context() as patched:
        patched.setattr(store.settings, "put", put_and_lose)
        with pytest.raises(StoreError):
            board.plan(request(), ADA, once)
    assert not list((tmp_path / "plans").iterdir())
    assert start(board, board.plan(request(), ADA, once).id)


def test_a_start_removes_no_texts_of_a_plan_that_was_made_under_the_same_id_meanwhile(
    board: Board, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, add = Idempotency("ada", "once", "digest"), store.jobs.add
    first, later = board.plan(request(), ADA, once), list[PlanView]()

    def add_and_plan(*args: Any) -> Any:
        try:
            return add(*args)
        finally:
            later.append(board.plan(request(), ADA, once))

    with monkeypatch.context() as patched:
        patched.setattr(store.jobs, "add", add_and_plan)
        start(board, first.id)
    assert later[0].id == first.id and later[0].is_new
    assert not folder_of(first).exists()
    assert start(board, first.id)


def test_a_slow_start_does_not_take_a_plan_that_was_made_under_the_same_id_meanwhile(
    board: Board, store: Store
) -> None:
    once = Idempotency("ada", "once", "digest")
    slow = board.planned(board.plan(request(), ADA, once).id, ADA)
    start(board, slow.row.id)
    later = board.plan(request(), ADA, once)
    with pytest.raises(NotFound, match="started already"):
        board.submit(slow.request, ADA, defaults_version=slow.defaults_version, plan=slow)
    assert later.is_new and later.id == slow.row.id and folder_of(later).is_dir()
    assert start(board, later.id)


def test_texts_that_cannot_be_removed_are_told_of(board: Board, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = board.plan(request(), ADA)

    def refused(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("drumline.jobs.plans.shutil.rmtree", refused)
        with pytest.raises(StoreError, match="Permission denied"):
            board.drop_plan(plan.id, ADA)
    assert folder_of(plan).is_dir()
    board.drop_plan(plan.id, ADA)
    assert not folder_of(plan).exists()


def test_a_removal_leaves_what_was_put_under_the_same_id_since(store: Store) -> None:
    old = store.settings.put("plan", {}, "ada", document_id="plan-1")
    store.settings.remove(old)
    new = store.settings.put("plan", {}, "ada", document_id="plan-1")
    store.settings.remove(old)
    assert (old.version, store.settings.get("plan", "plan-1")) == (new.version, new)


def test_a_plan_from_before_folders_had_names_is_read_and_removed(board: Board, store: Store, tmp_path: Path) -> None:
    values = {"owner": "ada", "request": {"model_name": "gpt2"}, "config": {}, "notes": [], "texts": True}
    store.settings.put("plan", values, "ada", document_id="plan-old")
    folder = tmp_path / "plans" / "plan-old"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text('{"text": "a text"}\n')
    read = board.planned("plan-old", ADA)
    assert (read.request.texts, read.defaults_version) == ([{"text": "a text"}], 0)
    board.drop_plan("plan-old", ADA)
    assert not folder.exists() and store.settings.get("plan", "plan-old") is None
