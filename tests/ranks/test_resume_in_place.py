"""The same trainer made again in the run directory of one that was killed or stopped: as if nothing had happened."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from drumline import Trainer
from drumline.data.order import epoch_order
from drumline.errors import ConfigError, DataError, RunDirExists
from drumline.parallel.strategy import Batch
from drumline.rundir import RunDir, read_json, read_lines
from tests.unit.engine.training import (
    assert_same,
    events,
    losses,
    make_model,
    rows,
    squared_error,
    state_of,
    trainer_of,
)

NUM_ROWS, STEPS = 10, 9
"""Three epochs of updates of 4, 4 and 2 rows, a row a pass."""
TRAIN: dict[str, Any] = {"epochs": 3, "micro_batch": 1}
SAVES: dict[str, Any] = {"every": 1, "at_end": True, "keep": None, "asynchronous": False}
PLACES = {"first": 1, "mid": 2, "last of epoch": 3, "first of epoch 2": 4}
CLOCKED = ("time", "samples_per_s", "units_per_s", "loader_wait_s", "elapsed_s", "memory_resident_bytes")


class Killed(Exception):
    """Stands in for whatever ends a process."""


class Noted(Dataset[Any]):
    """The small run's rows, each read noted in a file that loader processes share."""

    def __init__(self, log: Path, count: int = NUM_ROWS) -> None:
        self._rows = rows(count)
        self._log = log

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        with self._log.open("a") as file:
            file.write(f"{index}\n")
        return self._rows[index]


class Dies:
    """The small run's loss with noise of all streams; after some training passes it ends the process."""

    def __init__(self, after: int | None) -> None:
        self._left = itertools.count() if after is None else iter(range(after))

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        if not model.training:
            return squared_error(model, batch)
        if next(self._left, None) is None:
            raise Killed
        noise = 1 + random.random() + float(np.random.rand()) + float(torch.rand(()))
        return squared_error(model, batch) * noise


class Whole(NamedTuple):
    """The run that nobody disturbed."""

    losses: list[float]
    weights: dict[str, Tensor]
    directory: Path


def trained(step: int) -> int:
    """Rows, and passes, of the first so many updates."""
    return step // 3 * NUM_ROWS + 4 * (step % 3)


def remaining(step: int) -> list[int]:
    """The rows of all updates after this one."""
    orders = [epoch_order(NUM_ROWS, 0, epoch, shuffle=True).tolist() for epoch in range(3)]
    return [row for order in orders for row in order][trained(step) :]


def begin(directory: Path, after: int | None = None, data: Any = None, **given: Any) -> Trainer:
    """The run of these tests; after: passes until it dies."""
    options = {
        "train": {},
        "checkpoint": SAVES,
        "eval_data": rows(5, seed=1),
        "model": make_model(dropout=0.3),
        **given,
    }
    options["train"] = {**TRAIN, **options["train"]}
    return trainer_of(directory, data, options.pop("model"), loss=Dies(after), **options)


def killed(trainer: Trainer) -> list[float]:
    """Losses of the updates that were made until the trainer died."""
    found: list[float] = []
    with pytest.raises(Killed), trainer:
        for info in trainer.steps():
            found += losses([info])
    return found


def stopped(trainer: Trainer, at: int) -> list[float]:
    """Losses up to this update, after which the caller leaves the loop."""
    with trainer:
        return losses(list(itertools.islice(trainer.steps(), at)))


def lines(directory: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    found = read_lines(directory / "metrics.jsonl")
    return [{key: value for key, value in record.items() if key not in CLOCKED} for record in found]


def resumes(directory: Path) -> list[dict[str, Any]]:
    """Its resume events."""
    return [record for record in read_lines(directory / "events.jsonl") if record["event"] == "resume"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The undisturbed run."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    with begin(directory) as trainer:
        found = losses(list(trainer.steps()))
    return Whole(found, state_of(trainer.model), directory)


def check(whole: Whole, found: list[float], directory: Path, trainer: Trainer) -> None:
    """All attempts together came to what the undisturbed run did."""
    assert found == whole.losses
    assert_same(trainer.model.state_dict(), whole.weights)
    assert lines(directory) == lines(whole.directory)


@pytest.mark.parametrize("workers", [0, 2], ids=["here", "persistent workers"])
@pytest.mark.parametrize("step", PLACES.values(), ids=PLACES)
def test_killed_in_the_middle_of_a_window(tmp_path: Path, whole: Whole, step: int, workers: int) -> None:
    """No row of the updates that are done is read again, also not to be thrown away."""
    directory, log = tmp_path / "run", tmp_path / "log"
    loader = {"num_workers": workers, "persistent_workers": True}
    found = killed(begin(directory, trained(step) + 1, Noted(log), loader=loader))
    assert len(found) == step
    log.unlink()
    with begin(directory, None, Noted(log), loader=loader) as again:
        found += losses(list(again.steps()))
    check(whole, found, directory, again)
    read = [int(line) for line in log.read_text().split()]
    if workers:  # where loader processes are to be started, row 0 is measured before, to see whether they have room
        assert sorted(read) == sorted([0, *remaining(step)])
    else:
        assert read == remaining(step)
    [event] = resumes(directory)
    epoch, window = divmod(step, 3)
    assert (event["step"], event["epoch"], event["window"], event["skipped"]) == (step, epoch, window, [])
    assert events(directory).count("start") == 2


@pytest.mark.parametrize("step", PLACES.values(), ids=PLACES)
def test_left_and_gone_on_with(tmp_path: Path, whole: Whole, step: int) -> None:
    found = stopped(begin(tmp_path / "run"), step)
    assert read_json(tmp_path / "run" / "exit.json")["reason"] == "closed"
    with begin(tmp_path / "run") as again:
        assert not found[step:]
        found += losses(list(again.steps()))
    check(whole, found, tmp_path / "run", again)
    assert read_json(tmp_path / "run" / "exit.json")["reason"] == "done"


def test_twice_in_one_epoch_with_a_checkpoint_some_updates_ago(tmp_path: Path, whole: Whole) -> None:
    directory, log = tmp_path / "run", tmp_path / "log"
    saves = {**SAVES, "every": 4}
    first = killed(begin(directory, trained(5) + 1, Noted(log), checkpoint=saves))
    assert first == whole.losses[:5]
    second = killed(begin(directory, trained(5) - trained(4) + 1, Noted(log), checkpoint=saves))
    assert second == whole.losses[4:5]
    log.unlink()
    with begin(directory, None, Noted(log), checkpoint=saves) as again:
        third = losses(list(again.steps()))
    check(whole, first[:4] + third, directory, again)
    assert [event["step"] for event in resumes(directory)] == [4, 4]
    assert [int(line) for line in log.read_text().split()] == remaining(4)


def test_an_update_later_each_time(tmp_path: Path, whole: Whole) -> None:
    found: list[float] = []
    for step in range(STEPS - 1):
        found += killed(begin(tmp_path / "run", trained(step + 1) - trained(step) + 1))
    with begin(tmp_path / "run") as last:
        found += losses(list(last.steps()))
    check(whole, found, tmp_path / "run", last)


def test_with_more_epochs(tmp_path: Path, whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    with begin(tmp_path / "run", train={"epochs": 2}) as short:
        found = losses(list(short.steps()))
    with begin(tmp_path / "run") as longer:
        found += losses(list(longer.steps()))
    check(whole, found, tmp_path / "run", longer)
    assert "changed since the run was kept: train.epochs: 2 -> 3" in caplog.text
    [changed] = [record for record in read_lines(tmp_path / "run" / "events.jsonl") if record["event"] == "changed"]
    assert changed["settings"] == {"train.epochs": [2, 3]}


def test_a_finished_run_is_not_trained_again(tmp_path: Path, whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    with begin(tmp_path / "run") as first:
        expected = first.fit()
    with begin(tmp_path / "run", model=make_model()) as again:
        assert again.evaluate() == {name: value for name, value in expected.history[-1].items() if name != "step"}
        assert again.fit() == expected
    check(whole, whole.losses, tmp_path / "run", again)
    assert "is finished (done, 9 updates): nothing is left to train" in caplog.text
    with begin(tmp_path / "run", train={"epochs": 4}) as more:
        assert [info.epoch for info in more.steps()] == [3, 3, 3]


def test_a_run_that_stopped_early_stays_so(tmp_path: Path) -> None:
    evaluate = {"every": 1, "early_stopping": {"patience": 2}}
    settings: dict[str, Any] = {"train": {"lr": 1e-300}, "evaluate": evaluate}
    with begin(tmp_path / "run", **settings) as first:
        expected = first.fit()
    assert (expected.reason, expected.steps) == ("early_stop", 3)
    with begin(tmp_path / "run", **settings) as again:
        assert again.fit() == expected
    settings["evaluate"] = {"every": 1, "early_stopping": {"patience": 3}}
    with begin(tmp_path / "run", **settings) as patient:
        assert patient.fit().steps == 4


def test_the_log_intervals_sums_go_on(tmp_path: Path) -> None:
    track = {"every": 4}
    with begin(tmp_path / "whole", track=track) as undisturbed:
        undisturbed.fit()
    for step in (1, 3, 6):
        directory = tmp_path / str(step)
        killed(begin(directory, trained(step) + 1, track=track))
        with begin(directory, track=track) as again:
            again.fit()
        assert lines(directory) == lines(tmp_path / "whole")


def test_metrics_after_the_checkpoint_are_dropped_and_events_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    killed(begin(run.path, trained(5) + 1, checkpoint={**SAVES, "every": 2}))
    before = list(read_lines(run.events))
    for file in (run.metrics, run.events):
        with file.open("ab") as stream:
            stream.write(b'{"step": 5, "lo')
    assert [record["step"] for record in read_lines(run.metrics)] == [1, 2, 3, 3, 4, 5]
    with begin(run.path) as again:
        assert next(again.steps()).step == 5
        assert [record["step"] for record in read_lines(run.metrics)] == [1, 2, 3, 3, 4, 5]
    assert list(read_lines(run.events))[: len(before)] == before


def test_the_newest_valid_checkpoint_counts(tmp_path: Path, whole: Whole, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDir(tmp_path / "run")
    found = killed(begin(run.path, trained(6) + 1))[:3]
    for step in (4, 5, 6):
        [state] = [path for path in run.checkpoint_of(step).iterdir() if path.name != "manifest.json"]
        if step == 4:
            (run.checkpoint_of(4) / "manifest.json").unlink()
        elif step == 5:
            state.unlink()
        else:
            state.write_bytes(state.read_bytes()[:-1])
    with begin(run.path) as again:
        found += losses(list(again.steps()))
    check(whole, found, run.path, again)
    [event] = resumes(run.path)
    assert event["step"] == 3
    assert [Path(each["path"]).name for each in event["skipped"]] == ["step_6", "step_5", "step_4"]
    problems = [each["problem"] for each in event["skipped"]]
    assert "bytes, its manifest says" in problems[0] and "is missing" in problems[1]
    assert caplog.text.count("is passed over") == 3


def test_without_a_valid_checkpoint_nothing_is_begun_over_the_damaged_ones(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    killed(begin(run.path, trained(2) + 1))
    metrics = run.metrics.read_bytes()
    for step in (1, 2):
        (run.checkpoint_of(step) / "manifest.json").unlink()
    with pytest.raises(DataError, match="none of the checkpoints") as caught, begin(run.path) as again:
        again.fit()
    assert "step_2" in caught.value.problem and "step_1" in caught.value.problem
    assert run.metrics.read_bytes() == metrics


def test_without_any_checkpoint_it_begins_anew(tmp_path: Path, whole: Whole) -> None:
    run = RunDir(tmp_path / "run")
    killed(begin(run.path, trained(2) + 1, checkpoint={"at_end": False}, train={"shuffle": False}))
    assert [record["step"] for record in read_lines(run.metrics)] == [1, 2]
    with begin(run.path) as again:
        found = losses(list(again.steps()))
    check(whole, found, run.path, again)
    assert not resumes(run.path)


@pytest.mark.parametrize(
    ("given", "kind", "problem"),
    [
        ({"train": {"shuffle": False}}, ConfigError, r"train\.shuffle: true in .*run, now false"),
        ({"train": {"global_batch": 5}}, ConfigError, r"train\.global_batch: 4 in .*run, now 5"),
        ({"checkpoint": {"resume": False}}, RunDirExists, r"checkpoint\.resume is false"),
        ({"data": rows(11)}, DataError, "an epoch has 11 rows of training data, and had 10"),
        ({"model": nn.Linear(3, 1).double()}, DataError, "does not fit"),
    ],
)
def test_another_run_is_refused_and_nothing_is_touched(
    tmp_path: Path, whole: Whole, given: dict[str, Any], kind: type[Exception], problem: str
) -> None:
    run = RunDir(tmp_path / "run")
    found = killed(begin(run.path, trained(2) + 1))
    kept = [file.read_bytes() for file in (run.config, run.metrics, run.exit)]
    with pytest.raises(kind, match=problem), begin(run.path, **given) as other:
        other.fit()
    assert [file.read_bytes() for file in (run.config, run.metrics, run.exit)] == kept
    with begin(run.path) as again:
        found += losses(list(again.steps()))
    check(whole, found, run.path, again)


def test_two_runs_are_never_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.engine.resume.ENDING_S", 0.0)
    with begin(tmp_path / "run") as first:
        next(first.steps())
        with pytest.raises(RunDirExists, match="a run goes on in"), begin(tmp_path / "run") as second:
            second.fit()
    with begin(tmp_path / "run") as third:
        assert third.fit().steps == STEPS


def test_what_is_changed_takes_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    killed(begin(tmp_path / "run", trained(2) + 1))
    with begin(tmp_path / "run", train={"lr": 0.01}) as again:
        rates = [info.logged["lr"] for info in again.steps() if info.logged]
    assert rates == [0.01] * 7
    assert "train.lr: 0.05 -> 0.01" in caplog.text


def test_only_a_new_run_begins_with_the_initial_weights(tmp_path: Path, whole: Whole) -> None:
    saves = {**SAVES, "initial": whole.directory / "checkpoints" / "step_9"}
    with begin(tmp_path / "whole", checkpoint=saves) as undisturbed:
        expected = losses(list(undisturbed.steps()))
    assert not set(expected) & set(whole.losses)
    found = killed(begin(tmp_path / "run", trained(2) + 1, checkpoint=saves))
    with begin(tmp_path / "run", checkpoint=saves) as again:
        found += losses(list(again.steps()))
    assert found == expected
    assert_same(again.model.state_dict(), state_of(undisturbed.model))


class Numbers(IterableDataset[Any]):
    """The small run's rows one after the other, each read noted."""

    def __init__(self, seen: list[int]) -> None:
        self._rows = rows(NUM_ROWS)
        self._seen = seen

    def __iter__(self) -> Iterator[Any]:
        for index in range(NUM_ROWS):
            self._seen.append(index)
            yield self._rows[index]


def test_a_stream_goes_on_at_its_place_by_reading_up_to_it(tmp_path: Path) -> None:
    """A stream has no other way there: what was trained in this epoch is read again, and not trained again."""
    with begin(tmp_path / "whole", None, Numbers([])) as undisturbed:
        expected = losses(list(undisturbed.steps()))
    seen: list[int] = []
    found = killed(begin(tmp_path / "run", trained(4) + 1, Numbers([])))
    with begin(tmp_path / "run", None, Numbers(seen)) as again:
        found += losses(list(again.steps()))
    assert found == expected
    assert_same(again.model.state_dict(), state_of(undisturbed.model))
    assert seen == [*range(NUM_ROWS), *range(NUM_ROWS)]
