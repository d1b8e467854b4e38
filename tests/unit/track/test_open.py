"""Which trackers a run has, and which of them are guarded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from drumline.config.schema import TrackConfig
from drumline.errors import MissingExtra
from drumline.plan.record import Plan
from drumline.rundir import RunDir, read_lines
from drumline.track.jsonl import JsonlTracker
from drumline.track.open import check_trackers, open_trackers

PLAN = Plan("single", "cpu", (), 1, 1, "none", 4, 4, 1, "fp32", 0, 10, 5)


class Broken:
    """Fails at once."""

    def start(self, plan: Plan, total_steps: int | None) -> None:
        raise ConnectionError("refused")

    def log(self, record: dict[str, Any]) -> None:
        raise AssertionError("it was left out")

    def close(self) -> None:
        pass


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path / "run")
    run.config.write_text("name: moby\n")
    return run


def test_all_of_them_get_the_records_but_a_broken_one(directory: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[dict[str, Any]] = []
    trackers = open_trackers(
        TrackConfig(tensorboard=True),
        directory,
        [Broken()],
        lambda name, **facts: events.append({"event": name, **facts}),
    )
    for tracker in trackers:
        tracker.start(PLAN, 10)
    for tracker in trackers:
        tracker.log({"kind": "train", "step": 1, "loss": 2.0})
        tracker.close()
    assert [record["loss"] for record in read_lines(directory.metrics)] == [2.0]
    assert "step 1/10 | loss 2.0000" in capsys.readouterr().out
    assert len(list((directory.path / "tensorboard").glob("events.out.tfevents.*"))) == 1
    assert events == [
        {"event": "tracker_failed", "tracker": "Broken", "message": "Broken.start: ConnectionError: refused"}
    ]


def test_metrics_jsonl_is_always_there_and_not_guarded(directory: RunDir) -> None:
    (tracker,) = open_trackers(TrackConfig(console=False), directory, [], lambda name, **facts: None)
    assert isinstance(tracker, JsonlTracker)
    tracker.close()
    with pytest.raises(ValueError, match="closed"):
        tracker.log({"step": 1})


def test_a_missing_package_is_found_before_anything_is_opened(
    directory: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_trackers(TrackConfig(tensorboard=True))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    check_trackers(TrackConfig())
    with pytest.raises(MissingExtra, match="tensorboard is not installed"):
        check_trackers(TrackConfig(tensorboard=True))
    with pytest.raises(MissingExtra):
        open_trackers(TrackConfig(tensorboard=True), directory, [], lambda name, **facts: None)
    assert not directory.metrics.exists()
