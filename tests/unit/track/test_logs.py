"""drumline's logging: one file a rank, warnings on standard error, and the root logger left alone."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.track.logs import console_handler, log_to_file

logger = logging.getLogger("drumline.engine.loop")


@contextlib.contextmanager
def root_with(*handlers: logging.Handler) -> Iterator[None]:
    """The root as a program has configured it, without what pytest adds at each phase of a test."""
    root, drumline = logging.getLogger(), logging.getLogger("drumline")
    kept, root.handlers = root.handlers, list(handlers)
    try:
        yield
        assert root.handlers == list(handlers)
        assert (drumline.handlers, drumline.level, drumline.propagate) == ([], logging.NOTSET, True)
    finally:
        root.handlers = kept


def test_the_file_has_time_rank_level_and_traceback(tmp_path: Path) -> None:
    path = tmp_path / "rank_3.log"
    with root_with():
        undo = log_to_file(path, rank=3)
        logger.info("plan made")
        logger.debug("not this")
        try:
            raise ValueError("bad row")
        except ValueError:
            logger.exception("loader failed")
        undo()
        logger.error("after the end")
    first, *rest = path.read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert re.fullmatch(rf"{stamp} rank 3 INFO drumline\.engine\.loop: plan made", first)
    assert re.fullmatch(rf"{stamp} rank 3 ERROR drumline\.engine\.loop: loader failed", rest[0])
    assert rest[-1] == "ValueError: bad row"


def test_warnings_go_to_standard_error_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with root_with():
        undos = [console_handler(), console_handler(), log_to_file(tmp_path / "rank_0.log", 0)]
        logger.info("quiet")
        logger.warning("slow loader")
        for undo in undos:
            undo()
    assert capsys.readouterr().err == "WARNING drumline.engine.loop: slow loader\n"
    assert (tmp_path / "rank_0.log").read_text().count("slow loader") == 1


def test_a_configured_root_shows_each_record_once_and_sets_the_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = io.StringIO()
    with root_with(logging.StreamHandler(own)):
        undos = [console_handler(), log_to_file(tmp_path / "rank_0.log", 0)]
        logger.info("nobody asked")
        logger.warning("slow loader")
        for undo in undos:
            undo()
    assert own.getvalue() == "slow loader\n"
    assert capsys.readouterr().err == ""
    assert (tmp_path / "rank_0.log").read_text().count("\n") == 1


def test_a_level_that_the_user_set_is_kept(tmp_path: Path) -> None:
    drumline = logging.getLogger("drumline")
    drumline.setLevel(logging.ERROR)
    try:
        undo = log_to_file(tmp_path / "rank_0.log", 0)
        logger.warning("below the level")
        undo()
        assert drumline.level == logging.ERROR
    finally:
        drumline.setLevel(logging.NOTSET)
    assert (tmp_path / "rank_0.log").read_text() == ""
