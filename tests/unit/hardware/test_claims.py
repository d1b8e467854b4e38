from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from pathlib import Path

import psutil
import pytest

from drumline.hardware import claims as module
from drumline.hardware.claims import Claims

A, B = "GPU-a", "GPU-b"


def test_what_one_has_claimed_another_sees_and_does_not_get(tmp_path: Path) -> None:
    folder = tmp_path / "claims"
    with Claims("runs/first", folder) as one, Claims("runs/second", folder) as other:
        with one.choosing():
            assert one.take([A]) == {}
        assert list(one.held) == [A]
        seen = other.of_others([A, B])
        assert list(seen) == [A]
        own = psutil.Process()
        assert seen[A] == f"claimed by process {own.pid} of {module.user_name(os.getuid())} for runs/first"
        assert list(other.take([A, B])) == [A]
        assert list(other.held) == [B]
        assert one.of_others([A, B]).keys() == {B}
        one.release()
        assert other.take([A]) == {} and list(other.held) == [B, A]
        other.keep([A])
        assert one.take([B]) == {}
    with Claims("third", folder) as third:
        assert third.of_others([A, B]) == {}


def test_whoever_only_looks_makes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "claims"
    looks = Claims(None, folder)
    with looks.choosing():
        assert looks.of_others([A]) == {} and looks.take([A]) == {}
    assert not folder.exists()
    with Claims("x", folder) as one:
        one.take([A])
        with looks.choosing():
            assert list(looks.of_others([A, B])) == [A]
            assert looks.take([B]) == {} and looks.held == ()


def test_every_user_may_lock_and_nobody_removes_anothers_file(tmp_path: Path) -> None:
    folder = tmp_path / "claims"
    before = os.umask(0o077)
    try:
        with Claims("x", folder) as one:
            one.take([A])
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / f"{A}.lock").stat().st_mode) == 0o666


def test_claims_of_an_ancestor_are_as_ones_own(tmp_path: Path) -> None:
    with Claims("outer", tmp_path) as outer, Claims("inner", tmp_path) as inner:
        outer.take([A])
        parent = psutil.Process().parent()
        assert parent is not None
        record = {"pid": parent.pid, "started": parent.create_time(), "user": "anna"}
        (tmp_path / f"{A}.lock").write_text(json.dumps(record))
        assert inner.of_others([A]) == {} and inner.take([A]) == {}
        assert inner.held == ()
        (tmp_path / f"{A}.lock").write_text(json.dumps({**record, "started": 1.0}))  # its number, used again
        assert inner.of_others([A]) == {A: f"claimed by process {parent.pid} of anna"}


def test_whatever_stands_in_the_file_is_only_shown(tmp_path: Path) -> None:
    with Claims("x", tmp_path) as one, Claims("y", tmp_path) as other:
        one.take([A])
        for text in ("", "no json", "[1]"):
            (tmp_path / f"{A}.lock").write_text(text)
            assert other.of_others([A]) == {A: "claimed by another launch"}
        (tmp_path / f"{A}.lock").write_text(json.dumps({"pid": 1, "user": "a\x1b[2J", "run": "x" * 9999}))
        assert "\x1b" not in other.of_others([A])[A] and len(other.of_others([A])[A]) <= 200


def test_where_no_claim_can_be_made_there_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "claims").write_text("a file where the folder should be")
    with Claims("x", tmp_path / "claims") as one:
        with one.choosing():
            assert one.of_others([A]) == {}
            assert one.take([A, B]) == {}
        assert one.held == ()
    [message] = caplog.messages
    assert "nothing keeps another launch from the same GPUs" in message


def test_a_claim_holds_though_nobody_can_write_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    mine, others = Claims("mine", tmp_path), Claims("others", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert mine.take(["GPU-a"]) == {}
    assert others.take(["GPU-a"]) == {"GPU-a": "claimed by another launch"}
    mine.release()
    assert others.take(["GPU-a"]) == {}
    others.release()


def test_no_link_that_somebody_has_put_there_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "precious"
    target.write_text("keep")
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / f"{A}.lock").symlink_to(target)
    with Claims("x", folder) as one:
        assert one.take([A]) == {} and one.held == ()
    assert target.read_text() == "keep" and len(caplog.messages) == 1


def test_a_launch_that_chooses_for_ever_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += module.WAIT_S / 2
        return now

    with Claims("x", tmp_path, clock) as one:
        one.take([A])
        stuck = os.open(tmp_path / "choosing.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with one.choosing():
            assert one.take([B]) == {}
        os.close(stuck)
    assert "another launch has been choosing" in caplog.text
