"""A process is known by its number and its beginning."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from drumline.jobs import adoption
from drumline.jobs.adoption import MARK, began_of, end_marked, is_alive, machine_id, mark_of, marked, send, since_boot


def test_this_process_has_begun_when_the_kernel_says_so() -> None:
    began = began_of(os.getpid())
    assert began is not None
    assert began + psutil.boot_time() == pytest.approx(psutil.Process().create_time(), abs=1.1)
    assert is_alive(os.getpid(), began)
    assert not is_alive(os.getpid(), began + 0.01)


def test_nobody_lives_under_a_number_that_is_not_given() -> None:
    none = 2**22 + 1  # more than the kernel's most, see proc(5), pid_max
    assert began_of(none) is None
    assert not send(none, 1.0, signal.SIGTERM)


def test_a_signal_does_not_reach_who_has_got_the_number_since() -> None:
    began = began_of(os.getpid())
    assert began is not None
    assert not send(os.getpid(), began + 1, signal.SIGKILL)


def test_where_processes_have_no_descriptors_the_number_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    began = began_of(os.getpid())
    assert began is not None
    assert send(os.getpid(), began, signal.SIGCONT)
    assert not send(os.getpid(), began + 1, signal.SIGKILL)


def test_a_machine_is_the_same_until_it_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_id() == machine_id()
    before = machine_id()
    monkeypatch.setattr(adoption, "began_of", lambda pid: 0.5)
    assert machine_id.__wrapped__() != before


def test_two_containers_of_one_moment_are_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for names in ("pid:[1]", "pid:[2]"):
        (tmp_path / names / "self/ns").mkdir(parents=True)
        (tmp_path / names / "self/ns/pid").symlink_to(names)
        monkeypatch.setattr(adoption, "_PROC", tmp_path / names)
        found.append(machine_id.__wrapped__())
    assert len(set(found)) == 2


def test_the_time_since_the_start_is_that_of_processes() -> None:
    began = began_of(os.getpid())
    assert began is not None
    assert psutil.Process().create_time() - began == pytest.approx(time.time() - since_boot(), abs=1.1)


def test_a_mark_that_nobody_has_finds_nobody() -> None:
    assert marked(mark_of("job-of-nobody", 1)) == []
    assert end_marked(mark_of("job-of-nobody", 1)) == []


def test_one_that_is_just_being_executed_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is empty for a moment, in which the others that have the mark are gone."""
    mark = mark_of("job-of-two", 1)
    with (
        subprocess.Popen(["sleep", "300"], env={**os.environ, MARK: mark}) as first,
        subprocess.Popen(["sleep", "300"], env={**os.environ, MARK: mark}) as second,
    ):
        try:
            limit = time.monotonic() + 60
            while sorted(marked(mark)) != sorted((first.pid, second.pid)):
                assert time.monotonic() < limit
                time.sleep(0.01)
            real, late = adoption._environment, [True]

            def environment(pid: int) -> list[bytes]:
                if pid != second.pid or not late:
                    return real(pid)
                if first.poll() is not None:
                    late.clear()
                return []

            monkeypatch.setattr(adoption, "_environment", environment)
            assert end_marked(mark, 60.0) == []
            assert (first.wait(60), second.wait(10)) == (-9, -9)
        finally:
            first.kill()
            second.kill()
