"""`drumline train` in the run directory of an earlier `drumline train`: goes on, or says why not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from drumline.config.load import load_config
from drumline.rundir import Lock, RunDir, read_json, read_lines
from tests.cli.real_command import Command, Ended, end_of, processes_of, write_recipe

STEPS = ("--set", "train.max_steps=120", "--set", "evaluate.every=end", "--set", "checkpoint.every=5")


def train(folder: Path, *settings: str) -> Ended:
    return Command(folder, "train", "tiny.yaml", *STEPS, *settings).wait()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Ended]:
    """A run whose launcher was killed in the middle of it, and that was started again at once."""
    folder = write_recipe(tmp_path_factory.mktemp("resume"))
    run = RunDir(folder / "runs/tiny")
    with Command(folder, "train", "tiny.yaml", *STEPS) as command:
        command.reaches(lambda: (run.checkpoints / "step_10" / "manifest.json").exists())
        command.send(signal.SIGKILL)
    return run, train(folder)


def test_a_killed_run_goes_on(killed: tuple[RunDir, Ended]) -> None:
    run, ended = killed
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[1].startswith("  going on from its newest valid checkpoint; there is one of update ")
    assert end_of(run) == {"exit_status": 0, "reason": "done", "message": "", "steps": 120}
    assert processes_of(run) == []
    records = list(read_lines(run.events))
    [event] = [record for record in records if record["event"] == "resume"]
    assert 10 <= event["step"] < 120
    assert (event["world_size"], event["world_size_before"], event["skipped"]) == (2, 2, [])
    assert [record["event"] for record in records].count("start") == 2
    steps = [record["step"] for record in read_lines(run.metrics) if record["kind"] == "train"]
    assert steps == list(range(2, 121, 2))


def test_a_finished_run_says_so_and_starts_nobody(killed: tuple[RunDir, Ended]) -> None:
    run, _ = killed
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.suffix != ".lock"}
    ended = train(run.path.parent.parent)
    assert (ended.status, ended.err) == (0, "")
    first, last = ended.out.splitlines()
    assert first.startswith("the run in runs/tiny is finished (done, 120 updates): nothing is left to train")
    assert last.startswith("evaluation loss ")
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.suffix != ".lock"} == before


def test_a_second_launcher_is_refused(killed: tuple[RunDir, Ended]) -> None:
    run, _ = killed
    first = Lock(run, "launch")
    ended = train(run.path.parent.parent)
    first.release()
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("error: a run goes on in runs/tiny already: process ")


def test_another_run_is_refused_with_the_difference(killed: tuple[RunDir, Ended]) -> None:
    run, _ = killed
    config = run.config.read_bytes()
    ended = train(run.path.parent.parent, "--set", "seed=5", "--set", "model.width=32")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.splitlines() == [
        "error: this is not the run that is kept in runs/tiny:",
        "  seed: 0 in runs/tiny, now 5",
        "  model.width: 16 in runs/tiny, now 32",
        "  fix: set it back, or give this run another name (--set name=...)",
    ]
    ended = train(run.path.parent.parent, "--set", "checkpoint.resume=false")
    assert ended.status == 2 and "checkpoint.resume is false" in ended.err
    assert run.config.read_bytes() == config


def test_more_updates_on_another_number_of_ranks(killed: tuple[RunDir, Ended]) -> None:
    """Last, as it changes the run."""
    run, _ = killed
    more = ("--set", "train.max_steps=124", "--set", "hardware.num_processes=1")
    ended = train(run.path.parent.parent, *more)
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert lines[:4] == [
        "run: runs/tiny",
        "  going on from its newest valid checkpoint; there is one of update 120",
        "  changed: train.max_steps: 120 -> 124",
        "  changed: hardware.num_processes: 2 -> 1",
    ]
    assert ended.err.startswith("WARNING drumline: 2 processes have become 1: global batch, rates and the order of sam")
    assert end_of(run)["steps"] == 124
    assert load_config(run.config).train.max_steps == 124
    assert read_json(run.plan)["world_size"] == 1
    records = list(read_lines(run.events))
    [changed] = [record for record in records if record["event"] == "changed"]
    assert changed["settings"] == {"train.max_steps": [120, 124], "hardware.num_processes": [2, 1]}
    *_, event = [record for record in records if record["event"] == "resume"]
    assert (event["step"], event["world_size"], event["world_size_before"]) == (120, 1, 2)
