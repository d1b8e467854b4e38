from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.errors import DataError
from drumline.infer.locks import Locks


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[tuple[Locks, Locks]]:
    """Two handles of this process on one file, the second by another name."""
    first = Locks(tmp_path / "locks")
    (tmp_path / "link").symlink_to(tmp_path / "locks")
    second = Locks(tmp_path / "link")
    yield first, second
    first.close()
    second.close()


def test_a_byte_is_held_by_one_handle(handles: tuple[Locks, Locks]) -> None:
    first, second = handles
    assert first.try_take(7)
    assert not second.try_take(7)
    assert not first.try_take(7)
    assert second.try_take(8)
    first.give(7)
    assert second.try_take(7)


def test_closing_a_handle_frees_its_bytes_and_no_others(handles: tuple[Locks, Locks], tmp_path: Path) -> None:
    first, second = handles
    first.try_take(1)
    second.try_take(2)
    first.close()
    first.close()
    third = Locks(tmp_path / "locks")
    assert third.try_take(1)
    assert not third.try_take(2)
    third.close()
    with pytest.raises(ValueError, match="closed"):
        first.try_take(1)


def test_the_kernel_knows_of_it(handles: tuple[Locks, Locks], tmp_path: Path) -> None:
    first, _ = handles
    first.try_take(5)
    inode = (tmp_path / "locks").stat().st_ino
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    mine = [line for line in held if line[1] == "POSIX" and int(line[4]) == os.getpid()]
    assert [line[6:8] for line in mine if line[5].endswith(f":{inode}")] == [["5", "5"]]


def test_waiting_ends_when_asked(handles: tuple[Locks, Locks]) -> None:
    first, second = handles
    with first.held(3) as taken:
        assert taken
        with second.held(3, lambda: True) as taken_too:
            assert not taken_too
    with second.held(3) as taken:
        assert taken


def test_a_fork_holds_nothing(handles: tuple[Locks, Locks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="forked"):
        handles[0].try_take(1)
    monkeypatch.undo()


def test_a_file_system_without_locks_is_said(handles: tuple[Locks, Locks], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(DataError, match="knows no locks") as caught:
        handles[0].try_take(1)
    assert "run_dir" in caught.value.fix
