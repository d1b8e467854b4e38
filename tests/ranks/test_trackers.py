"""Trackers of a real run over two ranks: failing ones cost nothing, and memory is told by rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from drumline import Trainer
from drumline.plan.record import Plan
from drumline.rundir import read_lines
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, largest_difference, make_model

CONFIG = {"train": {"global_batch": 8, "max_steps": 6}, "evaluate": {"every": 3}}


class Sink:
    """Takes records until a call, given as method and number, in which it raises."""

    def __init__(self, fails: tuple[str, int] | None = None) -> None:
        self.calls: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._fails = fails

    def start(self, plan: Plan, total_steps: int | None) -> None:
        self._called("start")

    def log(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self._called("log")

    def close(self) -> None:
        self._called("close")

    def _called(self, method: str) -> None:
        self.calls.append(method)
        if self._fails == (method, self.calls.count(method)):
            raise ConnectionError(f"no answer to {method}")


Ending = tuple[dict[str, Tensor], list[Sink]]


def train_with(directory: str, failures: list[tuple[str, int] | None], track: Mapping[str, Any]) -> Ending:
    """The weights at the end, and this rank's sinks."""
    sinks = [Sink(fails) for fails in failures]
    case = Case(directory, {**CONFIG, "track": {"every": 1, "console": False, **track}})
    config, rows, held_out = config_of(case), MaskedRows(48), MaskedRows(7)
    with Trainer(make_model(), config, rows, loss=MaskedRegression([]), eval_data=held_out, trackers=sinks) as trainer:
        result = trainer.fit()
        assert result.steps == 6
        return {name: value.clone() for name, value in trainer.model.state_dict().items()}, sinks


def test_failing_trackers_are_left_out_and_the_run_stays_as_it_was(ranks: RankPool, tmp_path: Path) -> None:
    failures: list[tuple[str, int] | None] = [("start", 1), ("log", 1), ("log", 4), ("close", 1), None]
    directory = fresh(tmp_path)
    (weights, sinks), (others, idle) = ranks.run(2, train_with, directory, failures, {})
    (undisturbed, _), _ = ranks.run(2, train_with, fresh(tmp_path), [], {})
    assert largest_difference(weights, undisturbed) == largest_difference(weights, others) == 0
    log = ["log"] * 8  # six updates and two evaluations
    assert [sink.calls for sink in sinks] == [
        ["start", "close"],
        ["start", "log", "close"],
        ["start", *log[:4], "close"],
        ["start", *log, "close"],
        ["start", *log, "close"],
    ]
    assert [sink.calls for sink in idle] == [[]] * 5  # trackers are rank 0's
    metrics = [{**record, "time": None} for record in read_lines(Path(directory) / "metrics.jsonl")]
    assert metrics == [{**record, "time": None} for record in sinks[-1].records]
    events = [event for event in read_lines(Path(directory) / "events.jsonl") if event["event"] == "tracker_failed"]
    assert [(event["rank"], event["tracker"], event["message"]) for event in events] == [
        (0, "Sink", f"Sink.{method}: ConnectionError: no answer to {method}")
        for method in ("start", "log", "log", "close")
    ]


def test_memory_is_told_by_rank(ranks: RankPool, tmp_path: Path) -> None:
    (_, (sink,)), _ = ranks.run(2, train_with, fresh(tmp_path), [None], {})
    train = [record for record in sink.records if record["kind"] == "train"]
    for record in train:
        first, second = record["memory_resident_bytes"]
        assert first > 1e7 and second > 1e7
        assert first != second
        assert not {"memory_peak_bytes", "memory_allocated_bytes", "memory_reserved_bytes"} & record.keys()


def test_tensorboard_has_what_metrics_jsonl_has(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    ranks.run(2, train_with, directory, [], {"tensorboard": True})
    folder = Path(directory) / "tensorboard"
    assert len(list(folder.iterdir())) == 1
    found = EventAccumulator(str(folder)).Reload()
    for kind in ("train", "eval"):
        records = [record for record in read_lines(Path(directory) / "metrics.jsonl") if record["kind"] == kind]
        points = [(point.step, point.value) for point in found.Scalars(f"{kind}/loss")]
        assert points == [(record["step"], pytest.approx(record["loss"], rel=1e-6)) for record in records]
        assert len(points) == {"train": 6, "eval": 2}[kind]
    assert {"train/memory_resident_bytes/rank_0", "train/memory_resident_bytes/rank_1"} <= set(found.Tags()["scalars"])
    assert found.Tags()["tensors"] == ["plan/text_summary", "config/text_summary", "_hparams_/session_start_info"]


class NotInstalled(MetaPathFinder):
    """Finds no tensorboard."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name.partition(".")[0] == "tensorboard":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def train_without_tensorboard(directory: str) -> None:
    """Rank 0 is a process in which tensorboard is not installed."""
    finder = NotInstalled()
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tensorboard"}
    if os.environ["RANK"] == "0":
        sys.meta_path.insert(0, finder)
        for name in loaded:
            del sys.modules[name]
    try:
        train_with(directory, [], {"tensorboard": True})
    finally:
        sys.modules.update(loaded)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def test_a_missing_package_ends_all_ranks_before_there_is_a_run_directory(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    first, second = failures_of(ranks, 2, train_without_tensorboard, directory)
    assert first.name == "MissingExtra"
    assert second.name == "PeerFailed"
    for failure in (first, second):
        assert "tensorboard is not installed" in failure.message and "drumline[track]" in failure.message
    assert not Path(directory).exists()
