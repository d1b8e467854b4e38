"""On which rank of which run the GPUs are recorded, and what the recorder is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drumline.config.schema import RunConfig
from drumline.engine import recorder
from drumline.engine.recorder import start_recorder
from drumline.engine.run import Run
from drumline.launcher.recording import RecordingJob
from drumline.launcher.world import World
from drumline.rundir import RunDir


@dataclass
class Side:
    """The side channel of a rank; rank 0's clock stands at 70 s."""

    asked: list[str] = field(default_factory=list)

    def exchange(self, tag: str, payload: Any) -> list[Any]:
        self.asked.append(tag)
        return [70.0, payload]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RecordingJob]:
    """What recorders were started with; none is."""
    jobs: list[RecordingJob] = []
    monkeypatch.setattr(recorder, "Recorder", lambda job: jobs.append(job))
    return jobs


def run_of(
    world: World,
    device: str = "cuda",
    record: bool | str = "auto",
    sick: str = "leave_out",
    gpus: tuple[str, ...] = ("GPU-a", "GPU-b"),
) -> Run:
    """As much of a run as is looked at."""
    asked = {"monitor": {"record": record}, "faults": {"sick_gpu": "at_once"}, "hardware": {"sick": sick}}
    config = RunConfig.model_validate(asked)
    plan = SimpleNamespace(device=device, gpus=gpus[: world.local_size] if device == "cuda" else ())
    parts = {
        "config": config,
        "plan": plan,
        "groups": SimpleNamespace(world=world, side=Side()),
        "directory": RunDir(Path("run")),
        "progress": SimpleNamespace(step=12),
        "clock": lambda: 50.0,
        "began": 8.0,
    }
    return cast(Run, SimpleNamespace(**parts))


ALONE = World()
TWO = World(1, 2, 1, 2, source="torch elastic")
SECOND_MACHINE = World(2, 4, 0, 2, source="slurm")


def test_by_itself_only_where_there_are_gpus(started: list[RecordingJob]) -> None:
    for device, record in (("cpu", "auto"), ("cpu", False), ("cuda", False)):
        start_recorder(run_of(ALONE, device, record))
    assert started == []
    for device, record in (("cuda", "auto"), ("cuda", True), ("cpu", True)):
        start_recorder(run_of(ALONE, device, record))
    assert [job.gpus for job in started] == [("GPU-a",), ("GPU-a",), ()]


def test_one_on_each_machine(started: list[RecordingJob]) -> None:
    for world in (replace(TWO, rank=0, local_rank=0), TWO):
        start_recorder(run_of(world))
    assert [job.machine for job in started] == [0]
    for rank in (2, 3):
        start_recorder(run_of(replace(SECOND_MACHINE, rank=rank, local_rank=rank - 2)))
    assert [job.machine for job in started] == [0, 1]


def test_one_on_each_rank_that_sees_its_own_gpu_alone(started: list[RecordingJob]) -> None:
    """As under srun --gpus-per-task."""
    runs = [run_of(replace(TWO, rank=rank, local_rank=rank), gpus=(f"GPU-{rank}",)) for rank in (0, 1)]
    for run in runs:
        start_recorder(run)
    assert [(job.gpus, job.machine) for job in started] == [(("GPU-0",), 0), (("GPU-1",), 1)]
    assert [job.node[-2:] for job in started] == ["-0", "-1"]
    assert [job.elapsed_s for job in started] == [70.0, 70.0]


def test_no_restart_is_asked_for_where_a_sick_gpu_would_be_used_again(started: list[RecordingJob]) -> None:
    start_recorder(run_of(ALONE, sick="use"))
    assert [job.sick_gpu for job in started] == ["ignore"]


def test_the_clock_is_that_of_rank_0_s_lines(started: list[RecordingJob]) -> None:
    alone, other = run_of(ALONE), run_of(SECOND_MACHINE)
    start_recorder(alone)
    start_recorder(other)
    assert [(job.elapsed_s, job.step) for job in started] == [(42.0, 12), (70.0, 12)]
    assert cast(Side, alone.groups.side).asked == []
    # All ranks of several machines take part, also those that start nothing.
    idle = run_of(replace(SECOND_MACHINE, rank=3, local_rank=1))
    start_recorder(idle)
    assert cast(Side, idle.groups.side).asked == ["recorder"]
    assert len(started) == 2


def test_a_job_goes_through_the_pipe_as_it_is(started: list[RecordingJob]) -> None:
    start_recorder(run_of(ALONE))
    [job] = started
    assert job.run_dir.is_absolute()
    assert (job.sick_gpu, job.monitor["no_step_s"], job.every_s) == ("at_once", 900.0, 1.0)
    assert RecordingJob.from_line(job.to_line()) == job
    assert job.to_line().count(b"\n") == 1
    assert "/" not in job.node


def test_a_machine_that_cannot_start_one_trains_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(job: RecordingJob) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(recorder, "Recorder", refuse)
    assert start_recorder(run_of(ALONE)) is None
    assert caplog.messages == ["the GPUs are not recorded: no more processes"]
