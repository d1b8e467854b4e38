"""What is told of an attempt from its files alone, without any process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

import pytest

from drumline.errors import ConfigError, HardwareError
from drumline.hardware.selection import Selection, Wish, require
from drumline.jobs import executor as module
from drumline.jobs.adoption import began_of, machine_id
from drumline.jobs.events import Began, End, Ended, Gone, Missing, Refused, Restarted, Started
from drumline.jobs.executor import NOT_TO_BE_USED, Executor
from drumline.jobs.keeper_files import AttemptFiles, Claim, Command, EndRecord
from drumline.jobs.records import Job, Resources, State, Work
from drumline.jobs.states import START_S
from drumline.rundir import write_json

NOW = 1000.0
DEAD = (2**22 + 1, 5.0)
"""A process that there cannot be."""


@pytest.fixture
def executor(tmp_path: Path) -> Executor:
    return Executor(tmp_path, commands=lambda job, folder: [Command("train", ("true",))], clock=lambda: NOW)


def job_of(state: State = "starting", pid: int | None = None, attempt: int = 1) -> Job:
    began = None if pid is None else 1.0
    work, resources = Work("train", {}), Resources(devices=1)
    return Job(
        "a", "ann", work, resources, 0.0, state, attempt=attempt, pid=pid, pid_began=began, attempt_began=NOW - 1
    )


def files_of(executor: Executor, attempt: int = 1) -> AttemptFiles:
    executor.folder("a").mkdir(exist_ok=True)
    return AttemptFiles(executor.folder("a"), attempt)


def test_one_that_is_being_started_tells_nothing(executor: Executor) -> None:
    assert executor.look(job_of()) is None
    files_of(executor)
    assert executor.look(job_of()) is None


def test_a_keeper_that_lives_has_started_and_its_run_has_begun_when_there_is_a_plan(executor: Executor) -> None:
    files, began = files_of(executor), began_of(os.getpid())
    files.take(Claim(machine_id(), 0.0, os.getpid(), began))
    assert executor.look(job_of()) == Started(os.getpid(), began or 0.0, NOW, 1)
    job = job_of(pid=os.getpid())
    assert executor.look(job) is None
    files.run.path.mkdir()
    write_json(files.run.plan, {})
    assert executor.look(job) == Began(NOW, 1)


def test_the_plan_of_an_earlier_attempt_is_no_beginning(executor: Executor) -> None:
    files, began = files_of(executor, 2), began_of(os.getpid())
    files.run.path.mkdir()
    write_json(files.run.plan, {})
    os.utime(files.run.plan, (50.0, 50.0))
    # Its keeper's clock is not the file system's.
    files.take(Claim(machine_id(), 40.0, os.getpid(), began))
    os.utime(files.claim, (60.0, 60.0))
    assert executor.look(job_of(pid=os.getpid(), attempt=2)) is None
    os.utime(files.run.plan, (60.0, 60.0))
    assert executor.look(job_of(pid=os.getpid(), attempt=2)) == Began(NOW, 2)


def test_the_plan_of_the_job_that_is_retried_is_no_beginning(executor: Executor) -> None:
    files = files_of(executor)
    files.run.path.mkdir()
    write_json(files.run.plan, {})
    os.utime(files.run.plan, (50.0, 50.0))
    files.take(Claim(machine_id(), 40.0, os.getpid(), began_of(os.getpid())))
    assert executor.look(job_of(pid=os.getpid())) is None
    files.run.plan.touch()
    os.utime(files.claim, (60.0, 60.0))
    assert executor.look(job_of(pid=os.getpid())) == Began(NOW, 1)


def test_an_end_is_told_as_the_keeper_saw_it(executor: Executor) -> None:
    files = files_of(executor)
    files.take(Claim(machine_id(), 0.0, *DEAD))
    files.write_end(EndRecord(None, 9, "train", "killed", "more memory", "signal", 5.0))
    assert executor.look(job_of("running", 5)) == Ended(
        End(None, 9, "killed", "more memory", "train", "signal"), NOW, 1
    )


def test_a_process_that_is_gone_without_a_word(executor: Executor) -> None:
    files_of(executor).take(Claim(machine_id(), 0.0, *DEAD))
    assert executor.look(job_of("running", 5)) == Gone(NOW, 1)


def test_on_a_full_disk_it_is_the_disk_that_is_named(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of(executor).take(Claim(machine_id(), 0.0, *DEAD))
    monkeypatch.setattr(module, "LOW_BYTES", 1 << 62)
    event = executor.look(job_of("running", 5))
    assert isinstance(event, Ended)
    assert "is full" in event.end.message
    assert executor.problem() == f"the disk of {executor.jobs_dir} is full"


def test_a_machine_that_was_started_again(executor: Executor) -> None:
    files = files_of(executor)
    files.take(Claim("another life", 0.0, os.getpid(), began_of(os.getpid())))
    assert executor.look(job_of("running", 5)) == Restarted(NOW, 1, 0.0)
    files.run.path.mkdir()
    files.run.metrics.touch()
    os.utime(files.claim, (60.0, 60.0))
    os.utime(files.run.metrics, (65.0, 65.0))
    assert executor.look(job_of("running", 5)) == Restarted(NOW, 1, 5.0), "what it wrote tells how long it lasted"


def test_a_keeper_in_another_container_is_left_alone(executor: Executor) -> None:
    files = files_of(executor)
    files.take(Claim("another container", 0.0, 7, 5.0))
    held = files.hold()
    assert held is not None
    assert executor.look(job_of("running", 5)) is None
    held.close()
    assert executor.look(job_of("running", 5)) == Restarted(NOW, 1)


def test_a_keeper_that_is_not_seen_here_lives_while_it_holds_its_lock(executor: Executor) -> None:
    """In two containers of one machine the ids may be the same."""
    files = files_of(executor)
    files.take(Claim(machine_id(), 0.0, *DEAD))
    held = files.hold()
    assert held is not None
    assert executor.look(job_of("running", 5)) is None
    held.close()
    assert executor.look(job_of("running", 5)) == Gone(NOW, 1)


def test_a_folder_that_is_gone_is_missed_of_a_job_that_had_begun(executor: Executor) -> None:
    assert executor.look(job_of("running", DEAD[0])) == Missing(NOW)
    assert executor.look(job_of("starting")) is None


def test_a_disk_that_is_not_there_loses_no_job(executor: Executor) -> None:
    executor.jobs_dir.rmdir()
    with pytest.raises(FileNotFoundError):
        executor.look(job_of("running", DEAD[0]))
    assert executor.problem() is not None


def test_a_job_of_another_data_directory_is_not_touched(executor: Executor) -> None:
    job = job_of("running")
    began = began_of(os.getpid())
    with pytest.raises(FileNotFoundError, match="another data directory"):
        executor.look(Job(**{**vars(job), "pid": os.getpid(), "pid_began": began}))


def test_a_late_keeper_is_not_waited_for_for_ever_and_never_begins(tmp_path: Path) -> None:
    steady = [5.0]
    executor = Executor(tmp_path, clock=lambda: NOW, steady=lambda: steady[0])
    files = files_of(executor)
    # By the clock it is late: that may have been set.
    late = Job(**{**vars(job_of()), "attempt_began": NOW - START_S - 1})
    for steady[0] in (5.0, 5.0 + START_S):
        assert executor.look(late) is None
        assert files.read_claim() is None
    steady[0] += 1.0
    assert executor.look(late) is None
    claim = files.read_claim()
    assert claim is not None
    assert claim.void == "refused"
    event = executor.look(late)
    assert isinstance(event, Refused)
    assert event.reason == "not_started"
    assert "did not begin within" in event.message


class Over(subprocess.Popen[bytes]):
    """A keeper that has ended at once."""

    known: ClassVar[WeakSet[Over]] = WeakSet()

    def __init__(self, *_: object, **__: object) -> None:
        self.returncode = 0
        self.known.add(self)

    def poll(self) -> int:
        return 0


def test_a_keeper_that_left_the_attempt_to_another_is_no_failure(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(executor)
    other = files.hold()
    assert other is not None
    monkeypatch.setattr(subprocess, "Popen", Over)
    executor.start(job_of())
    assert executor.look(job_of()) is None
    assert files.read_claim() is None
    other.close()
    executor.look(job_of())
    event = executor.look(job_of())
    assert isinstance(event, Refused)
    assert event.message == "its keeper ended before it began"


def test_a_keeper_whose_end_another_service_saw_is_waited_for(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Over)
    executor.start(job_of())
    executor.keep_only({("a", 1)})
    assert len(Over.known) == 1
    monkeypatch.setattr(Over, "poll", lambda keeper: None)
    executor.keep_only(())
    assert len(Over.known) == 1, "it is still ending"
    monkeypatch.undo()
    executor.keep_only(())
    assert len(Over.known) == 0


def test_one_that_is_stopped_before_it_began_ends_interrupted(executor: Executor) -> None:
    executor.ask_to_stop(job_of())
    executor.ask_to_stop(job_of())
    event = executor.look(job_of())
    assert isinstance(event, Ended)
    assert event.end.exit_status == 3


def test_settings_that_nobody_knows_are_a_bad_request(tmp_path: Path) -> None:
    def refuse(job: Job, folder: Path) -> list[Command]:
        raise ConfigError("no such setting", "name another")

    executor = Executor(tmp_path, commands=refuse, clock=lambda: NOW)
    executor.start(job_of())
    assert executor.look(job_of()) == Refused("bad_request", "no such setting", "name another", NOW, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_what_the_disk_refuses_is_said_even_where_nothing_can_be_written(
    number: int, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(AttemptFiles, "write_request", refuse)
    monkeypatch.setattr(AttemptFiles, "take", refuse)
    executor.start(job_of())
    event = executor.look(job_of())
    assert isinstance(event, Refused)
    assert event.reason == "not_started"
    assert event.message
    assert event.fix
    executor.keep_only({("a", 1)})
    assert executor.look(job_of()) == event
    executor.keep_only({("a", 2)})
    assert executor.look(job_of()) is None


def test_a_machine_without_room_for_a_process_says_so(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    executor.start(job_of())
    event = executor.look(job_of())
    assert isinstance(event, Refused)
    assert "Resource temporarily unavailable" in event.message


def test_a_gpu_that_somebody_took_at_the_last_moment_is_waited_for(executor: Executor) -> None:
    with pytest.raises(HardwareError) as told:
        require(Selection((), {"GPU-1": "taken: process 5"}), Wish(names=("GPU-1",)), {})
    assert told.value.problem.startswith(NOT_TO_BE_USED)
    files = files_of(executor)
    files.take(Claim(machine_id(), 0.0, *DEAD))
    files.write_end(EndRecord(2, None, "train", told.value.problem, told.value.fix))
    assert executor.look(job_of("running", 5)) == Ended(End(3, message=told.value.problem), NOW, 1)


def test_the_stores_password_is_no_business_of_a_jobs(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def note(*_: object, env: dict[str, str], **__: object) -> None:
        seen.update(env)
        raise OSError(errno.EAGAIN, "enough")

    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setattr(subprocess, "Popen", note)
    executor.start(job_of())
    assert seen["DRUMLINE_JOB"] == "a/1"
    assert "PGPASSWORD" not in seen
    assert sys.executable in module.KEEPER
