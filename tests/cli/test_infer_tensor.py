"""`drumline infer` with a part of each layer in each of two processes: the answers of one, whoever dies meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.infer.team import FOLLOW
from tests.cli.prediction import arguments, batches_done, make_model, rows_of, write_rows
from tests.cli.real_command import Command
from tests.tiny_models import save_bert

COUNT = 30
SPLIT = {"split.gpus": 2, "split.kind": "tensor"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, rows, and the answers of one process."""
    made = tmp_path_factory.mktemp("whole")
    given = arguments(make_model(made), write_rows(made / "rows.jsonl", COUNT), "one.jsonl")
    ended = Command(made, *given).wait()
    assert ended.status == 0, ended.err
    return made


def given_to(folder: Path, **settings: Any) -> list[str]:
    chosen: dict[str, Any] = {**SPLIT, **settings}
    return arguments(folder / "model", folder / "rows.jsonl", "out.jsonl", **chosen)


def followers_of(command: Command) -> list[psutil.Process]:
    """The processes that another worker has started."""
    found = psutil.Process(command.pid).children(recursive=True)
    return [process for process in found if FOLLOW in process.cmdline()]


def test_two_processes_write_what_one_writes_and_none_is_left(folder: Path, tmp_path: Path) -> None:
    with Command(tmp_path, *given_to(folder)) as command:
        command.reaches(lambda: followers_of(command))
        (follower,) = followers_of(command)
        ended = command.wait()
    assert ended.status == 0, ended.err
    assert (tmp_path / "out.jsonl").read_bytes() == (folder / "one.jsonl").read_bytes()
    assert not follower.is_running()


def test_stopped_with_all_its_processes_it_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Command(tmp_path, *given_to(folder)) as command:
        command.reaches(lambda: batches_done(out) >= 1)
        (follower,) = followers_of(command)
        follower.send_signal(signal.SIGINT)  # as a terminal does
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.status == 3 and "the same command goes on" in ended.err, ended
    assert not follower.is_running()
    ended = Command(tmp_path, *given_to(folder)).wait()
    assert ended.status == 0 and "which goes on" in ended.out, ended
    assert out.read_bytes() == (folder / "one.jsonl").read_bytes()


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_whoever_of_them_is_killed_the_run_goes_on_in_new_ones(folder: Path, tmp_path: Path, who: str) -> None:
    out = tmp_path / "out.jsonl"
    with Command(tmp_path, *given_to(folder)) as command:
        command.reaches(lambda: batches_done(out) >= 1)
        (follower,) = followers_of(command)
        leader = follower.parent()
        assert leader is not None
        (follower if who == "follower" else leader).kill()
        ended = command.wait()
    assert ended.status == 0, ended.err
    assert out.read_bytes() == (folder / "one.jsonl").read_bytes()
    assert not follower.is_running() and not leader.is_running()


@pytest.mark.parametrize(("task", "column"), [("embed", "embedding"), ("score", "log_likelihood")])
def test_other_tasks_have_one_processs_numbers(folder: Path, tmp_path: Path, task: str, column: str) -> None:
    rows = {}
    for name, split in (("one", {}), ("two", SPLIT)):
        settings = {"hardware.device": "cpu", "hardware.num_processes": 1, **split}
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        given = ["--model", str(folder / "model"), "--data", str(folder / "rows.jsonl"), "--task", task]
        ended = Command(tmp_path, "infer", *given, "--out", f"{name}.jsonl", *chosen).wait()
        assert ended.status == 0, ended.err
        rows[name] = rows_of(tmp_path / f"{name}.jsonl")
    assert len(rows["one"]) == COUNT
    for one, two in zip(rows["one"], rows["two"], strict=True):
        assert two["error"] == one["error"]
        if one["error"] is None:
            assert two[column] == pytest.approx(one[column], rel=1e-5, abs=1e-6)


def test_a_model_without_a_plan_and_a_number_that_does_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    save_bert(encoder)
    settings = {"hardware.device": "cpu", "hardware.num_processes": 1, **SPLIT}
    chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    given = ["--model", str(encoder), "--data", str(folder / "rows.jsonl"), "--task", "embed", "--out", "out.jsonl"]
    ended = Command(tmp_path, "infer", *given, *chosen).wait()
    assert ended.status == 2 and "has no plan by which its layers are split" in ended.err, ended
    ended = Command(tmp_path, *given_to(folder, **{"split.gpus": 4})).wait()
    assert ended.status == 2 and "2 heads of keys and values, which 4 GPUs cannot share" in ended.err, ended
    ended = Command(tmp_path, *given_to(folder, **{"task.engine": "static"})).wait()
    assert ended.status == 2 and "task.engine is static" in ended.err, ended
