"""What a run directory says of its run."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from drumline.monitor.runs import ENDED_WITHIN_S, RunsOnThisMachine, RunWatch, holder_of, room_of
from drumline.rundir import LineWriter, Lock, RunDir, keep_lines, write_json

START = 1_764_300_000.0
NO_PROCESS = 2**30
"""More than any kernel counts to."""


class WrittenRun:
    """A run directory as a run would leave it, line by line."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir.create(path)
        self.now = START
        self.watch = RunWatch(path, lambda: self.now)
        write_json(self.run.plan, {"steps": 100, "gpus": ["GPU-a"], "world_size": 2})

    def line(self, step: int, loss: float = 2.0, kind: str = "train", **more: Any) -> None:
        record = {"time": START + step, "kind": kind, "step": step, "epoch": 0, "loss": loss, "elapsed_s": float(step)}
        self.write(self.run.metrics, {**record, "units_per_s": 50.0, "unit": "tokens", "mfu": 0.4, **more})
        self.now = START + step

    def event(self, name: str, **facts: Any) -> None:
        self.write(self.run.events, {"time": self.now, "event": name, **facts})

    def ended(self, status: int, reason: str, message: str = "") -> None:
        write_json(self.run.exit, {"exit_status": status, "reason": reason, "message": message, "steps": 1})

    @staticmethod
    def write(path: Path, record: dict[str, Any]) -> None:
        writer = LineWriter(path)
        writer.write(record)
        writer.close()


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs" / "moby")


def test_nothing_is_overdue_before_the_first_line_and_the_second_may_take_as_long(written: WrittenRun) -> None:
    lock = Lock(written.run, "run")
    written.now += 2000
    assert written.watch.look().overdue_s is None
    written.line(10)
    written.now += 12
    run = written.watch.look()
    lock.release()
    assert run.elapsed_s is not None and run.overdue_s == 12 - run.elapsed_s


def test_a_run_that_trains(written: WrittenRun) -> None:
    lock = Lock(written.run, "run")
    for step in (10, 20, 30):
        written.line(step)
    written.now += 25
    run = written.watch.look()
    lock.release()
    assert (run.name, run.state, run.step, run.total_steps) == ("moby", "running", 30, 100)
    assert (run.step_age_s, run.overdue_s, run.eta_s, run.elapsed_s) == (25.0, 15.0, 70.0, 30.0)
    assert (run.loss, run.units_per_s, run.unit, run.mfu) == (2.0, 50.0, "tokens", 0.4)
    assert (run.gpus, run.world_size) == (("GPU-a",), 2)


def test_lines_about_gpus_are_no_sign_of_life(written: WrittenRun) -> None:
    with_gpu = {"time": START + 500, "kind": "gpu", "step": 10, "elapsed_s": 500.0, "gpus": {}}
    lock = Lock(written.run, "run")
    written.line(10)
    written.write(written.run.metrics, with_gpu)
    written.now = START + 500
    written.event("alert", rule="no_step", subject="moby", state="firing")
    run = written.watch.look()
    lock.release()
    assert (run.step, run.step_age_s, run.elapsed_s, run.units_per_s) == (10, 490.0, 10.0, 50.0)
    assert run.alerts == ("no_step",)


def test_alerts_that_are_over_and_those_of_an_earlier_attempt_are_not_told(written: WrittenRun) -> None:
    for rule, state in (("idle", "firing"), ("idle", "resolved"), ("low_use", "firing")):
        written.event("alert", rule=rule, subject="GPU-a", state=state)
    assert written.watch.look().alerts == ("low_use",)
    written.event("start", world_size=1)
    assert written.watch.look().alerts == ()


def test_states_by_exit_and_by_who_lives(written: WrittenRun) -> None:
    lock = written.run.logs / "run.lock"
    states = []
    for text in ("", f"process {os.getpid()} on elsewhere", f"process {NO_PROCESS} on {socket.gethostname()}"):
        lock.write_text(text)
        states.append(written.watch.look().state)
    assert states == ["starting", "elsewhere", "killed"]
    # Its launcher lives: it is being started again.
    launch = Lock(written.run, "launch")
    assert written.watch.look().state == "starting"
    launch.release()
    for status, reason, state in ((0, "done", "done"), (3, "interrupted", "interrupted"), (1, "failed", "failed")):
        written.ended(status, reason, "because")
        run = written.watch.look()
        assert (run.state, run.message, run.step_age_s, run.eta_s) == (state, "because", None, None)


def test_a_run_is_of_the_machine_that_took_it_last(written: WrittenRun) -> None:
    here, elsewhere = (f"process {NO_PROCESS} on {name}" for name in (socket.gethostname(), "elsewhere"))
    found = []
    for run_lock, launch_lock in (("", ""), (elsewhere, ""), ("", elsewhere), (here, elsewhere), (elsewhere, here)):
        (written.run.logs / "run.lock").write_text(run_lock)
        (written.run.logs / "launch.lock").write_text(launch_lock)
        found.append(written.watch.look().here)
    assert found == [True, False, False, True, False]
    written.ended(1, "failed")
    assert not written.watch.look().here, "an end is told of where it was"
    launch = Lock(written.run, "launch")
    assert written.watch.look().here, "it is started here"
    launch.release()


def test_a_lock_is_looked_at_and_left_alone(written: WrittenRun) -> None:
    held = Lock(written.run, "run")
    assert holder_of(written.run.logs / "run.lock") == "alive"
    held.release()
    assert holder_of(written.run.logs / "launch.lock") == "nobody"
    Lock(written.run, "run").release()


def test_a_run_that_goes_on_from_a_checkpoint_is_read_anew(written: WrittenRun) -> None:
    for step in range(1, 41):
        written.line(step, loss=100.0 if step > 20 else 1.0)
    rise = written.watch.look().loss_rise
    assert rise is not None
    assert rise > 50
    keep_lines(written.run.metrics, lambda record: record["step"] <= 20)
    run = written.watch.look()
    assert (run.step, run.loss, run.loss_rise) == (20, 1.0, 0.0)


def test_evaluations_and_losses_that_are_not_finite(written: WrittenRun) -> None:
    written.line(10, loss=float("nan"))
    written.line(10, loss=1.5, kind="eval")
    run = written.watch.look()
    assert run.loss is not None
    assert run.loss != run.loss
    assert run.eval_loss == 1.5


def test_a_broken_directory_is_told_of_as_far_as_it_goes(written: WrittenRun) -> None:
    written.run.plan.write_text("{")
    written.run.exit.write_text("[]")
    written.run.metrics.write_text('{"kind": "train", "step": "many", "loss": null}\n')
    run = written.watch.look()
    assert (run.state, run.step, run.loss, run.total_steps) == ("starting", None, None, None)


def test_room_is_counted_by_the_newest_checkpoint(written: WrittenRun) -> None:
    assert room_of(written.run)[1] == 0
    for step, size in ((9, 5000), (10, 300), (2, 7000)):
        folder = written.run.checkpoint_of(step)
        folder.mkdir(parents=True)
        (folder / "state.pt").write_bytes(b"x" * size)
        (folder / "manifest.json").write_bytes(b"{}")
    (written.run.checkpoints / "step_new").mkdir()
    free, taken = room_of(written.run)
    assert taken == 302
    assert free > 0


def test_runs_on_this_machine_are_those_that_go_on_or_ended_lately(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    runs = {name: WrittenRun(folder / name) for name in ("done", "going", "old", "killed")}
    (folder / "launch").mkdir()
    (folder / "notes.txt").touch()
    lock = Lock(runs["going"].run, "run")
    for written in runs.values():
        written.line(1)
    runs["done"].ended(0, "done")
    runs["old"].ended(0, "done")
    (runs["killed"].run.logs / "run.lock").write_text(f"process {NO_PROCESS} on {socket.gethostname()}")
    now = runs["done"].run.exit.stat().st_mtime
    for file in (runs["old"].run.exit, runs["old"].run.metrics):
        os.utime(file, (now - 2 * ENDED_WITHIN_S, now - 2 * ENDED_WITHIN_S))
    look = RunsOnThisMachine([folder], lambda: now)
    assert [(run.name, run.state) for run in look()] == [("done", "done"), ("going", "running"), ("killed", "killed")]
    # A folder that is itself a run, and one that is not there.
    lone = RunsOnThisMachine([folder / "going", folder / "nothing"], lambda: now)
    assert [run.name for run in lone()] == ["going"]
    later = RunsOnThisMachine([folder], lambda: now + 3 * ENDED_WITHIN_S)
    assert [run.name for run in later()] == ["going"]
    lock.release()
