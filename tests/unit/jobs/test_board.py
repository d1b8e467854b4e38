"""The use cases of jobs over a real store: who may do what, and what lies where afterwards."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.config.load import config_from_mapping, dump_config, load_config, read_overrides
from drumline.config.service import FilesConfig, LimitsConfig, ServiceConfig
from drumline.errors import ConfigError, Conflict, DrumlineError, Forbidden, IdempotencyConflict, NotFound, Quota
from drumline.jobs.board import Board
from drumline.jobs.commands import commands_of
from drumline.jobs.records import Job
from drumline.jobs.requests import JobRequest, Role, Who
from drumline.jobs.states import Asked, End, Ended, Event, Granted, Started, handle
from drumline.jobs.store import Idempotency, JobFilter, Store, open_store

ADA, BEN, ROOT, LOOKER = Who("ada"), Who("ben"), Who("root", "admin", "key-1"), Who("*", "viewer")
SECRET = "a text that nobody else may see"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.sqlite3'}")
    yield opened
    opened.close()


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    (tmp_path / "gpt2").mkdir()
    return ServiceConfig(
        data_dir=tmp_path / "service",
        node="here",
        files=FilesConfig(model_names={"gpt2": tmp_path / "gpt2"}),
        limits=LimitsConfig(max_queued=5),
    )


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def board(store: Store, config: ServiceConfig, woken: list[str]) -> Iterator[Board]:
    made = Board(store, config, lambda: woken.append("woken"))
    yield made
    for owner in ("ada", "ben", "root"):  # the store is shared by the tests of this file
        for job in store.jobs.find(JobFilter(owner=owner, states=frozenset({"queued", "running"})), limit=200).items:
            store.jobs.update(job.id, lambda job: handle(job, Asked("cancel", 1.0)).job)


def request(**says: Any) -> JobRequest:
    return JobRequest.model_validate({"model_name": "gpt2", "texts": [SECRET], "user_id": 123, **says})


def happens(store: Store, job: Job, *events: Event) -> Job:
    for event in events:
        store.jobs.update(job.id, lambda job, event=event: handle(job, event).job)  # type: ignore[misc]
    found = store.jobs.get(job.id)
    assert found is not None
    return found


STARTS = (Granted(("cpu:0",), 10.0), Started(77, 5.0, 11.0))


def ended(store: Store, job: Job, status: int = 1) -> Job:
    return happens(store, job, *STARTS, Ended(End(status, message="it failed"), 20.0))


def test_a_request_becomes_a_queued_job_whose_texts_lie_in_a_file_of_its_owner(
    board: Board, store: Store, woken: list[str]
) -> None:
    job = board.submit(request(tags=["a", "b", "a"], training_type="dataparallel"), ADA)
    assert (job.state, job.owner, job.user_id, job.tags, job.node) == ("queued", "ada", "123", ("a", "b"), "here")
    assert board.get(job.id, ADA) == job and woken
    rows = board.folder(job) / "rows.jsonl"
    assert json.loads(rows.read_text()) == {"text": SECRET}
    assert stat.S_IMODE(rows.stat().st_mode) == 0o600 and stat.S_IMODE(rows.parent.stat().st_mode) == 0o700
    assert SECRET not in repr(store.jobs.get(job.id))
    assert [audit.event for audit in store.log.audits(limit=1).items] == ["job.submit"]


def test_a_request_that_is_refused_leaves_nothing(board: Board, config: ServiceConfig) -> None:
    with pytest.raises(ConfigError):
        board.submit(request(model_name="nobody"), ADA)
    assert not list((config.data_dir / "jobs").glob("*")) and board.find(JobFilter(text="nobody"), ADA).total == 0


def test_the_same_request_sent_twice_is_one_job(board: Board, config: ServiceConfig) -> None:
    key = Idempotency("ada", f"key {config.data_dir}", "a digest")
    first, second = board.submit(request(), ADA, key), board.submit(request(), ADA, key)
    assert first.id == second.id
    assert [path.name for path in (config.data_dir / "jobs").iterdir()] == [first.id]
    with pytest.raises(IdempotencyConflict):
        board.submit(request(), ADA, replace(key, fingerprint="another digest"))
    assert [path.name for path in (config.data_dir / "jobs").iterdir()] == [first.id]


def test_a_request_that_comes_again_is_known_before_anything_is_looked_at(
    board: Board, store: Store, config: ServiceConfig
) -> None:
    key = Idempotency("ben", f"key {config.data_dir}", "a digest")
    job = ended(store, board.submit(request(), BEN, key))
    again = replace(key, key=f"{key.key} again")
    retried = board.retry(job.id, BEN, idempotency=again)
    for _ in range(4):
        board.submit(request(), BEN)  # the queue is full now
    board.delete_data(job.id, BEN)
    gone = request(model_name="nobody")
    assert board.submit(gone, BEN, key).id == job.id
    assert board.retry(job.id, BEN, idempotency=again).id == retried.id
    with pytest.raises(IdempotencyConflict):
        board.submit(gone, BEN, replace(key, fingerprint="another digest"))
    with pytest.raises(IdempotencyConflict):
        board.retry(job.id, BEN, idempotency=replace(again, fingerprint="another digest"))
    with pytest.raises(Forbidden):
        board.submit(gone, Who("ben", "viewer"), key)


def test_another_owners_job_is_not_there(board: Board, store: Store) -> None:
    job = ended(store, board.submit(request(), ADA))
    asks = (board.get, board.cancel, board.retry, board.delete_data)
    for who in (BEN, Who("ben", "viewer")):
        for ask in asks:
            with pytest.raises(NotFound) as refused:
                ask(job.id, who)
            with pytest.raises(NotFound) as unknown:
                ask("job-nobody-has", who)
            assert refused.value.problem.replace(job.id, "") == unknown.value.problem.replace("job-nobody-has", "")
        assert job.id not in [each.id for each in board.find(JobFilter(), who).items]
        assert board.find(JobFilter(owner="ada"), who).total == 0
    for who in (ADA, ROOT, LOOKER):
        assert board.get(job.id, who).id == job.id
        assert job.id in [each.id for each in board.find(JobFilter(owner="ada"), who).items]


@pytest.mark.parametrize("who", [Who("ada", "viewer"), LOOKER])
def test_a_viewer_changes_nothing(board: Board, store: Store, who: Who) -> None:
    job = board.submit(request(), ADA)
    plan = board.plan(request(), ADA)
    for ask in (board.cancel, board.retry, board.delete_data):
        with pytest.raises(Forbidden):
            ask(job.id, who)
    for change in (
        lambda: board.submit(request(), who),
        lambda: board.plan(request(), who),
        lambda: board.drop_plan(plan.id, who),
        lambda: board.set_defaults({}, who),
    ):
        with pytest.raises(Forbidden):
            change()
    assert store.jobs.get(job.id) == job


def test_a_user_that_is_called_star_does_not_own_the_others(board: Board) -> None:
    job = board.submit(request(), ADA)
    with pytest.raises(Forbidden):
        board.cancel(job.id, Who("*", "user"))


def test_an_admin_changes_all(board: Board) -> None:
    job = board.submit(request(), ADA)
    assert board.cancel(job.id, ROOT).state == "cancelled"
    again = board.retry(job.id, ROOT)
    assert (again.owner, again.retry_of, again.state) == ("ada", job.id, "queued")


def test_cancel(board: Board, store: Store, woken: list[str]) -> None:
    job = board.submit(request(), ADA)
    woken.clear()
    cancelled = board.cancel(job.id, ADA)
    assert (cancelled.state, cancelled.result) == ("cancelled", {"success": False}) and woken
    assert board.cancel(job.id, ADA).version == board.get(job.id, ADA).version
    job = happens(store, board.submit(request(), ADA), *STARTS)
    stopping = board.cancel(job.id, ADA)
    assert (stopping.state, stopping.stop, stopping.message) == ("stopping", "cancel", "cancelled by ada")


def test_a_queue_has_an_end(board: Board) -> None:
    for _ in range(5):
        job = board.submit(request(), BEN)
    with pytest.raises(Quota):
        board.submit(request(), BEN)
    board.submit(request(), ADA)
    board.cancel(job.id, BEN)
    board.submit(request(), BEN)


def prepared_of(job: Job, folder: Path, shared: Path) -> Path:
    """A file where the job's own command has its data prepared."""
    words = commands_of(job, folder, shared)[0].words
    said = read_overrides([words[index + 1] for index, word in enumerate(words) if word == "--set"])
    file = Path(said["data"]["cache_dir"]) / "rows" / "rows.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(SECRET)
    return file


def test_texts_are_removed_by_their_owner_once_they_are_not_needed(
    board: Board, store: Store, config: ServiceConfig
) -> None:
    job = board.submit(request(), ADA)
    with pytest.raises(Conflict):
        board.delete_data(job.id, ADA)
    ended(store, job)
    folder = board.folder(job)
    prepared = prepared_of(job, folder, config.data_dir / "cache")
    assert folder in prepared.parents
    (folder / "run").mkdir()
    board.delete_data(job.id, ADA)
    board.delete_data(job.id, ADA)
    assert [path.name for path in folder.iterdir()] == ["run"]
    assert not [path for path in config.data_dir.rglob("*") if path.is_file() and SECRET in path.read_text()]
    with pytest.raises(Conflict, match="texts"):
        board.retry(job.id, ADA)


def test_files_of_another_machine_are_left_to_its_service(board: Board, store: Store) -> None:
    job = ended(store, board.submit(request(), ADA))
    there = replace(job, id=f"{job.id}-there", node="there")
    store.jobs.add(there)
    for ask in (board.retry, board.delete_data):
        with pytest.raises(Conflict, match="lie on there"):
            ask(there.id, ADA)


def test_retry_from_the_beginning_takes_the_texts_along(board: Board, store: Store) -> None:
    job = board.submit(request(name="mine"), ADA)
    with pytest.raises(Conflict, match="is queued"):
        board.retry(job.id, ADA)
    ended(store, job)
    again = board.retry(job.id, ADA)
    assert (again.work, again.name, again.attempt, again.failures) == (job.work, "mine", 0, 0)
    board.delete_data(job.id, ADA)
    assert SECRET in (board.folder(again) / "rows.jsonl").read_text()
    assert not (board.folder(again) / "run").exists()


def test_retry_from_a_checkpoint_begins_with_what_the_run_had(board: Board, store: Store) -> None:
    job = board.submit(request(), ADA)
    ended(store, job)
    with pytest.raises(Conflict, match="no checkpoint"):
        board.retry(job.id, ADA, from_checkpoint=True)
    old = a_run(board.folder(job))
    again = board.retry(job.id, ADA, from_checkpoint=True)
    new = board.folder(again) / "run"
    assert sorted(path.name for path in new.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "events.jsonl",
        "logs",
        "metrics.jsonl",
        "plan.json",
    ]
    assert [path.name for path in (new / "checkpoints").iterdir()] == ["step_4"]
    saved = "checkpoints/step_4/state.pt"
    assert (new / saved).stat().st_ino == (old / saved).stat().st_ino
    config = load_config(new / "config.yaml")
    assert config.run_dir == new
    assert config.data is not None and config.data.train == [str(board.folder(again) / "rows.jsonl")]  # type: ignore[union-attr]
    with (new / "metrics.jsonl").open("a") as file:
        file.write("more\n")
    assert (old / "metrics.jsonl").read_text() == '{"step": 4}\n'
    assert not [path for path in board.folder(again).iterdir() if path.name.startswith(".")]


def test_what_is_done_is_not_gone_on_with(board: Board, store: Store) -> None:
    job = ended(store, board.submit(request(), ADA), status=0)
    a_run(board.folder(job))
    with pytest.raises(Conflict, match="nothing is left"):
        board.retry(job.id, ADA, from_checkpoint=True)


def a_run(folder: Path) -> Path:
    """A run directory with one whole checkpoint and half of another."""
    run = folder / "run"
    for name in ("logs", "checkpoints/step_4", "checkpoints/step_8"):
        (run / name).mkdir(parents=True)
    config = config_from_mapping(
        {
            "run_dir": str(run),
            "data": {"kind": "records", "train": [str(folder / "rows.jsonl")]},
            "train": {"global_batch": 4, "epochs": 1},
        },
        "a test",
    )
    (run / "config.yaml").write_text(dump_config(config))
    (run / "plan.json").write_text('{"global_batch": 4}')
    (run / "metrics.jsonl").write_text('{"step": 4}\n')
    (run / "events.jsonl").write_text("")
    (run / "exit.json").write_text('{"exit_status": 3}')
    for step in (4, 8):
        (run / f"checkpoints/step_{step}/state.pt").write_bytes(b"weights")
    manifest = {"step": 4, "files": [], "world_size": 1, "kind": "single", "format": "whole"}
    (run / "checkpoints/step_4/manifest.json").write_text(json.dumps(manifest))
    return run


def test_a_plan_is_started_by_its_id(board: Board, store: Store, config: ServiceConfig) -> None:
    plan = board.plan(request(settings={"epochs": 2}), ADA)
    assert plan.config == {"train.epochs": 2} and "texts" not in plan.request
    kept = store.settings.get("plan", plan.id)
    assert kept is not None and SECRET not in repr(kept)
    job = board.submit(board.planned(plan.id, ADA).request, ADA)
    assert SECRET in (board.folder(job) / "rows.jsonl").read_text() and job.work.settings == {"train.epochs": 2}
    with pytest.raises(NotFound):
        board.planned(plan.id, BEN)
    board.drop_plan(plan.id, ADA)
    assert not list((config.data_dir / "plans").iterdir())
    with pytest.raises(NotFound, match="there is no plan"):
        board.planned(plan.id, ADA)
    with pytest.raises(NotFound):
        board.planned("plan-nobody-has", ADA)


def test_a_plan_may_leave_model_and_data_to_its_start(board: Board) -> None:
    plan = board.plan(JobRequest(settings={"epochs": 2}), ADA)
    row, *others = board.planned(plan.id, ADA)
    assert (row.id, *others) == (plan.id, JobRequest(settings={"epochs": 2}), 0, None)
    with pytest.raises(ConfigError):
        board.plan(JobRequest(settings={"epochs": -2}), ADA)


def test_defaults_are_kept_in_versions_and_taken_by_later_jobs(board: Board, store: Store) -> None:
    before, version = board.defaults()
    assert (before, version) == (None, 0)
    assert "train.precision" not in board.submit(request(), ADA).work.settings
    config, version = board.set_defaults({"mixed_precision": False, "use_multi_gpu": False}, ROOT)
    assert (config.mixed_precision, version, board.defaults()) == (False, 1, (config, 1))
    job = board.submit(request(), ADA)
    assert (job.work.settings["train.precision"], job.resources.devices) == ("fp32", 1)
    assert job.work.defaults_version == 1
    job = board.submit(request(), ADA, defaults_version=0)
    assert (job.work.settings, job.resources.devices, job.work.defaults_version) == ({}, "auto", 0)
    assert board.plan(request(), ADA, defaults_version=0).config == {}
    with pytest.raises(Conflict):
        board.set_defaults({"use_multi_gpu": True}, ROOT, expected=0)
    with pytest.raises(ConfigError, match="memory_fraction"):
        board.set_defaults({"memory_fraction": 7}, ROOT)
    with pytest.raises(ConfigError, match="nonsense"):
        board.set_defaults({"nonsense": 7}, ROOT)
    assert board.set_defaults({"use_multi_gpu": True}, ROOT, expected=1)[1] == 2


def test_the_result_of_ones_own_job_is_a_model(board: Board, store: Store) -> None:
    job = ended(store, board.submit(request(), ADA), status=0)
    made = board.folder(job) / "model"
    made.mkdir()
    assert board.submit(request(model_name=str(made)), ADA).work.model == str(made)
    with pytest.raises(ConfigError, match="no model"):
        board.submit(request(model_name=str(made)), BEN)


def test_a_disk_that_takes_nothing_is_told_of(board: Board, config: ServiceConfig) -> None:
    config.data_dir.mkdir()
    (config.data_dir / "jobs").write_text("a file where the folder would be")
    with pytest.raises(DrumlineError, match="cannot be written") as refused:
        board.submit(request(), ADA)
    assert refused.value.code == "store" and board.find(JobFilter(states=frozenset({"queued"})), ADA).total == 0


@pytest.mark.parametrize("role", ["viewer", "user", "admin"])
def test_roles(role: Role) -> None:
    assert Who("ada", role).role == role
