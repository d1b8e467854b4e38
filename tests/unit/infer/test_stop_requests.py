from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline.infer import stop_requests
from drumline.infer.stop_requests import StopRequest
from drumline.predictions import PredictionDir


def test_only_a_file_that_is_newer_counts_unless_old_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_requests, "LOOK_S", 0.0)
    directory = PredictionDir(tmp_path)
    directory.run.requests.mkdir()
    file = directory.run.requests / "stop"
    file.touch()
    os.utime(file, (1, 1))
    asked, launched = StopRequest(directory), StopRequest(directory, heeds_old=True)
    assert (asked(), launched()) == (False, True)
    file.write_text("{}")
    assert asked()
    file.unlink()
    assert asked()
    assert not StopRequest(directory)()
    assert not list(tmp_path.glob("tmp*"))


def test_the_caller_s_own_means_count_at_once(tmp_path: Path) -> None:
    answers = iter([False, True])
    asked = StopRequest(PredictionDir(tmp_path), lambda: next(answers))
    assert [asked(), asked(), asked()] == [False, True, True]
