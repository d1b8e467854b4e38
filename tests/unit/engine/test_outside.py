from __future__ import annotations

import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from drumline.config.schema import RunConfig
from drumline.engine.outside import LOOK_S, MARGIN_S, Outside, limits, outside_of, taken
from drumline.engine.run import Run
from drumline.launcher.notices import Notice
from drumline.launcher.world import World
from drumline.rundir import RunDir, write_json


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_asks() -> None:
    outside = Outside()
    assert outside.look() is None and not outside.wants_save()


def test_a_signal_is_found_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    notice = Notice()
    outside = Outside(notice)
    assert outside.look() is None
    notice.take(signal.SIGUSR1)
    notice.take(signal.SIGTERM)
    with caplog.at_level(logging.WARNING, "drumline"):
        assert outside.look() == outside.look() == "interrupted by SIGUSR1"
    assert len(caplog.records) == 1


def test_what_another_rank_was_asked_for_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    notice = Notice()
    outside = Outside(notice)
    outside.stop_is_agreed("interrupted by SIGINT")
    notice.take(signal.SIGINT)
    assert outside.look() == "interrupted by SIGINT"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["interrupted by SIGINT"]


def test_requests_are_read_once_a_second_and_heeded_once(tmp_path: Path) -> None:
    clock = Clock()
    outside = Outside(requests=tmp_path, clock=clock)
    assert outside.look() is None
    (tmp_path / "stop").touch()
    (tmp_path / "save").touch()
    clock.now += LOOK_S / 2
    assert outside.look() is None and not outside.wants_save()
    clock.now += LOOK_S / 2
    # Whichever looks first finds both.
    assert outside.wants_save() and outside.wants_save()
    outside.save_is_agreed()
    assert not outside.wants_save()
    assert outside.look() == "asked to stop by a request file"
    assert list(tmp_path.iterdir()) == []
    outside.begin(Notice())
    assert outside.look() is None


def test_a_rank_that_does_not_read_requests_leaves_them(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    assert Outside().look() is None
    assert (tmp_path / "stop").exists()


def test_a_request_that_cannot_be_removed_is_heeded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request = tmp_path / "stop"
    request.mkdir()  # stands in for a directory that may not be written: root may write everywhere
    assert taken(request)
    assert "cannot be removed" in caplog.text


def test_a_restart_is_asked_for_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outside = Outside(requests=tmp_path, clock=clock)
    assert outside.wants_restart() is None
    write_json(tmp_path / "restart", {"reason": "GPU GPU-1 has turned sick: XID 94"})
    clock.now += LOOK_S
    assert outside.wants_restart() == outside.wants_restart() == "GPU GPU-1 has turned sick: XID 94"
    assert outside.look() is None  # it is no stop
    assert list(tmp_path.iterdir()) == [] and len(caplog.records) == 1
    outside.begin(Notice())
    assert outside.wants_restart() is None


def test_another_machine_reads_what_its_recorder_asks_for(tmp_path: Path) -> None:
    def run_of(world: World) -> Run:
        config = RunConfig()
        groups = SimpleNamespace(world=world)
        parts = {"config": config, "groups": groups, "is_rank_zero": world.rank == 0, "directory": RunDir(tmp_path)}
        return cast(Run, SimpleNamespace(**parts))

    first_there, second_there = (outside_of(run_of(World(2 + rank, 4, rank, 2))) for rank in (0, 1))
    for name in ("stop", "save", "restart"):
        (tmp_path / "requests" / name).touch()
    assert second_there.wants_restart() is None
    assert first_there.look() is None and not first_there.wants_save()
    assert first_there.wants_restart() == "asked to start again by a request file"
    assert {path.name for path in (tmp_path / "requests").iterdir()} == {"stop", "save"}


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"why": 1}'])
def test_a_restart_may_be_asked_for_without_a_word(tmp_path: Path, content: str) -> None:
    (tmp_path / "restart").write_text(content)
    assert Outside(requests=tmp_path).wants_restart() == "asked to start again by a request file"


def test_time_runs_out() -> None:
    clock = Clock()
    clock.now = 50.0
    outside = Outside(limits={"late": 20.0, "early": 10.0}, clock=clock)
    clock.now = 59.9
    assert outside.look() is None
    clock.now = 60.0
    assert outside.look() == "early"


@pytest.mark.parametrize(
    ("environ", "max_time_s", "expected"),
    [
        ({}, None, []),
        ({}, 5.0, [5.0]),
        ({"SLURM_JOB_END_TIME": "11000"}, None, [10_000 - MARGIN_S]),
        ({"SLURM_JOB_END_TIME": "11000"}, 7.0, [7.0, 10_000 - MARGIN_S]),
        ({"SLURM_JOB_END_TIME": "1100"}, None, [90.0]),  # a short job has a short margin
        ({"SLURM_JOB_END_TIME": "999"}, None, []),  # a shell that outlived its job
        ({"SLURM_JOB_END_TIME": "Unknown"}, None, []),
        ({"SLURM_JOB_END_TIME": ""}, None, []),
    ],
)
def test_limits(environ: dict[str, str], max_time_s: float | None, expected: list[float]) -> None:
    assert sorted(limits(max_time_s, environ, now=1000.0).values()) == pytest.approx(expected)
