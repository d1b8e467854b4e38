"""Who has an attempt: one, whole or nobody."""

from __future__ import annotations

import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drumline.jobs import keeper
from drumline.jobs.finetuning_records import last_error
from drumline.jobs.keeper_files import LOG_BYTES, TORN_S, AttemptFiles, Claim, Command, EndRecord, end_of, error_in


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    return AttemptFiles(tmp_path, 1)


def test_of_many_one_has_the_attempt(files: AttemptFiles) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda pid: files.take(Claim("here", 1.0, pid)), range(1, 33)))
    assert sum(taken) == 1
    claim = files.read_claim()
    assert claim is not None
    assert claim.pid == taken.index(True) + 1
    assert [path.name for path in files.folder.iterdir()] == ["attempt_1.json"]


def test_so_it_is_without_hard_links(files: AttemptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert files.take(Claim("here", 1.0, 5))
    assert not files.take(Claim("here", 1.0, 6))
    assert files.read_claim() == Claim("here", 1.0, 5)


def test_a_torn_claim_is_nobodys_once_it_is_old(files: AttemptFiles) -> None:
    files.claim.write_text('{"machine": "he')
    assert files.read_claim() is None
    old = time.time() - TORN_S - 1
    os.utime(files.claim, (old, old))
    assert files.read_claim() == Claim("", 0.0)


def test_nothing_is_said_of_what_is_not_there(files: AttemptFiles) -> None:
    assert (files.read_claim(), files.read_end(), files.is_held()) == (None, None, False)


def test_requests_and_ends_come_back_as_they_were_written(files: AttemptFiles) -> None:
    commands = [Command("train", ("drumline", "train")), Command("export", ("drumline", "export"), "/out")]
    files.write_request(commands)
    assert files.read_request() == commands
    assert stat.S_IMODE(files.request.stat().st_mode) == 0o600
    files.room.write_bytes(b"0" * 10)
    end = EndRecord(1, None, "export", "no room", "make some", "disk", 5.0)
    files.write_end(end)
    assert files.read_end() == end
    assert not files.room.exists()


def test_an_end_that_is_none_is_a_failure(files: AttemptFiles) -> None:
    files.end.write_text("[]")
    end = files.read_end()
    assert end is not None
    assert end.exit_status is None
    assert "end_1.json" in end.message


def test_a_lock_is_held_while_its_file_is_open(files: AttemptFiles) -> None:
    held = files.hold()
    assert held is not None
    assert files.is_held()
    assert files.hold(0.05) is None
    held.close()
    assert not files.is_held()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("error: no\n  fix: yes\n", ("no", "yes")),
        ("error: first\nerror: second\n  fix: a\nb", ("second", "a\nb")),
        ("an error: in words", None),
        ("", None),
    ],
)
def test_the_last_error_is_found(text: str, found: tuple[str, str] | None) -> None:
    assert error_in(text) == found


def test_of_a_long_log_the_end_is_read(files: AttemptFiles) -> None:
    files.log.write_text("error: early\n" + "x" * LOG_BYTES)
    assert len(end_of(files.log)) == LOG_BYTES
    assert last_error(files.log) is None
    with files.log.open("a") as log:
        log.write("\r50%\r\nerror: late\n  fix: sooner\n")
    assert last_error(files.log) == ("late", "sooner")
    assert end_of(files.log, files.log.stat().st_size - 6) == "ooner\n"
    assert end_of(files.log, files.log.stat().st_size + 1) == ""


def test_a_keeper_reads_the_end_of_its_log_and_says_no_more_than_a_page(files: AttemptFiles) -> None:
    files.log.write_text("error: early\n" + "x\n" * LOG_BYTES)
    assert keeper._failure(files, time.time(), 0) == ("", "", None)
    keeper._write(files, EndRecord(1, None, "train", "m" * 10000, "f" * 10000))
    end = files.read_end()
    assert end is not None
    assert (end.message, end.fix) == ("m" * keeper.MOST_CHARACTERS, "f" * keeper.MOST_CHARACTERS)
