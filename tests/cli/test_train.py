"""`drumline train` to a good end on two ranks: one launch, what it says and what it leaves."""

from __future__ import annotations

import math

import pytest

from drumline.config.load import load_config
from drumline.rundir import RunDir, read_json, read_lines
from tests.cli.real_command import Command, Ended, end_of, processes_of, write_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, RunDir]:
    """The recipe of these tests, trained to its end."""
    folder = write_recipe(tmp_path_factory.mktemp("train"))
    return Command(folder, "train", "tiny.yaml").wait(), RunDir(folder / "runs/tiny")


def test_it_ends_well_and_leaves_nobody(trained: tuple[Ended, RunDir]) -> None:
    ended, run = trained
    print(f"{ended.took_s:.1f} s in all")
    assert (ended.status, ended.err) == (0, "")
    assert end_of(run) == {"exit_status": 0, "reason": "done", "message": "", "steps": 6}
    assert processes_of(run) == []


def test_a_pipe_gets_the_plan_then_plain_lines_then_what_to_do_next(trained: tuple[Ended, RunDir]) -> None:
    ended, _ = trained
    assert "\x1b" not in ended.out and "\r" not in ended.out
    first, *plan, _, _, _, _, _, _, _, last = ended.out.splitlines()
    assert first == "run: runs/tiny"
    assert [line.split(maxsplit=2)[:2] for line in plan[:4]] == [
        ["kind", "ddp"],
        ["device", "cpu"],
        ["gpus", "0"],
        ["world_size", "2"],
    ]
    assert plan[3].endswith("hardware.num_processes asks for 2")
    lines = ended.out.splitlines()[len(plan) + 1 : -1]
    assert [line.split(",")[0] for line in lines[:2]] == ["data.train: 1 document", "data.eval: 1 document"]
    assert lines[2] == "2 processes on cpu, ddp; global batch 8 = 2 x 4; fp32; 6 updates"
    assert [line.split(" | ")[0] for line in lines[3:]] == ["step 2/6", "step 4/6", "step 6/6", "step 6/6"]
    assert last.startswith("evaluation loss ") and last.endswith("drumline report runs/tiny")


def test_the_run_directory_is_complete_and_private(trained: tuple[Ended, RunDir]) -> None:
    _, run = trained
    names = {
        "config.yaml",
        "plan.json",
        "env.json",
        "metrics.jsonl",
        "events.jsonl",
        "exit.json",
        "logs",
        "checkpoints",
        "requests",
    }
    assert {path.name for path in run.path.iterdir()} == names
    assert {run.log_of(rank).name for rank in range(2)} <= {path.name for path in run.logs.iterdir()}
    assert {path.name for path in run.checkpoints.iterdir()} == {"step_4", "step_6"}
    # Nobody else can enter; what is inside need not be closed once more.
    assert [path.stat().st_mode & 0o777 for path in (run.path, run.logs)] == [0o700, 0o700]
    config = load_config(run.config)
    assert config == load_config(run.path.parent.parent / "tiny.yaml")


def test_plan_environment_metrics_and_events_say_what_happened(trained: tuple[Ended, RunDir]) -> None:
    _, run = trained
    plan = read_json(run.plan)
    assert (plan["world_size"], plan["steps"], plan["kind"]) == (2, 6, "ddp")
    assert plan["steps_per_epoch"] > 6  # known to the workers alone, who have read the text
    assert set(plan["reasons"]) == set(plan) - {"reasons"}
    assert read_json(run.env)["packages"]["torch"]
    records = list(read_lines(run.metrics))
    assert [(record["kind"], record["step"]) for record in records] == [
        ("train", 2),
        ("train", 4),
        ("train", 6),
        ("eval", 6),
    ]
    assert all(math.isfinite(record["loss"]) for record in records)
    events = list(read_lines(run.events))
    assert [event["event"] for event in events][:3] == ["data_report", "start", "plan"]
    assert events[2]["message"] == "2 processes on cpu, ddp; global batch 8 = 2 x 4; fp32; 6 updates"
    assert events[-1]["event"] == "end"
    assert "plan: world_size is 2: torch elastic started 2" in run.log_of(0).read_text()


def test_its_report_is_made(trained: tuple[Ended, RunDir]) -> None:
    _, run = trained
    ended = Command(run.path.parent.parent, "report", "runs/tiny").wait()
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("done, 6 updates, evaluation loss ")
    assert (run.path / "report/index.html").stat().st_size > 10_000
