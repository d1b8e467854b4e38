"""Hangs as the commands show them: who was where is last on screen, and the command ends in time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_lines
from tests.cli.real_command import LIMIT_S, Command, end_of, launch_of, processes_of, worker_of, write_recipe

pytestmark = pytest.mark.system

HANG_S = 16.0
"""faults.hang_timeout_s, of which the start of a run takes some seconds; half of it counts after an update."""
FOREVER = ("train.max_steps=1000000", "evaluate.every=end", "checkpoint.every=null", "track.every=20")
SETTINGS = (*FOREVER, f"faults.hang_timeout_s={HANG_S}", "faults.max_restarts=0")


def test_train_with_a_stopped_rank(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path)
    command = Command(folder, "train", "tiny.yaml", *(part for text in SETTINGS for part in ("--set", text)))
    run = RunDir(folder / "runs/tiny")
    with command:
        command.reaches(lambda: run.metrics.exists() and list(read_lines(run.metrics)))
        worker_of(run, 1).send_signal(signal.SIGSTOP)
        stopped = time.time()
        ended = command.wait()
    assert ended.ended - stopped < HANG_S / 2 + LIMIT_S
    assert ended.status == 1
    (event,) = [record for record in read_lines(run.events) if record["event"] == "hang"]
    assert (event["missing"], event["arrived"]) == ([1], [0])
    assert "rank 1 is stopped by SIGSTOP or a debugger" in event["message"]
    assert ", step " in event["message"] and ".py:" in event["message"]
    report = f"error: the run hangs: {event['message']}\n  fix: {event['fix']}\n"
    assert ended.err.endswith(report), ended.err
    assert end_of(run)["exit_status"] == 1 and event["message"] in end_of(run)["message"]
    assert processes_of(run) == []


SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from drumline import RunConfig, TrainConfig, Trainer

how, rank = sys.argv[1], int(os.environ["RANK"])


def hang(trainer, info):
    if info.step < 2:
        return
    if how == "sleeps" and rank == 1:
        time.sleep(100)
    if how == "mismatch":
        dist.all_reduce(torch.ones(2)) if rank else dist.broadcast(torch.ones(3), 0)
        dist.barrier()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        if how == "worker" and row == 21:
            raise KeyError("row 21 is broken")
        return torch.full((2,), float(row))


model = torch.nn.Linear(2, 1)
config = RunConfig(
    name="tiny",
    train=TrainConfig(global_batch=8, epochs=1, shuffle=False),
    loader={"num_workers": 1},
    track={"every": 1},
    faults={"hang_timeout_s": HANG_S},
)
Trainer(model, config, Rows(), loss=lambda model, batch: model(batch).square().mean(), callbacks=[hang]).fit()
"""


def launch(folder: Path, how: str) -> tuple[str, RunDir, float]:
    """Run the script on two ranks; returns what was on screen last, the run, and how long it took after update 2."""
    (folder / "hangs.py").write_text(SCRIPT.replace("HANG_S", str(HANG_S)))
    two = ("--set", "hardware.device=cpu", "--set", "hardware.num_processes=2")
    ended = Command(folder, "launch", *two, "hangs.py", how).wait()
    assert ended.status == 1
    run = RunDir(folder / "runs/tiny")
    assert processes_of(launch_of(folder)) == []
    *_, last = read_lines(run.metrics)
    return ended.err, run, ended.ended - last["time"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "sleeps",
            ["rank 1 did not arrive, rank 0 waits", "rank 1 is in a callback: callbacks after update 2, step 2"],
        ),
        ("mismatch", ["in different places", "gloo:all_reduce (number", "gloo:broadcast (number", ", step 2"]),
    ],
)
def test_launch_of_a_script_that_hangs(how: str, said: list[str], tmp_path: Path) -> None:
    err, run, took_s = launch(tmp_path, how)
    assert took_s < HANG_S / 2 + LIMIT_S
    (event,) = [record for record in read_lines(run.events) if record["event"] == "hang"]
    assert err.endswith(f"error: the run hangs: {event['message']}\n  fix: {event['fix']}\n"), err
    for text in [*said, "hangs.py:"]:
        assert text in event["message"]


def test_an_exception_in_a_loader_process_says_where_the_run_stood(tmp_path: Path) -> None:
    err, _, took_s = launch(tmp_path, "worker")
    assert took_s < LIMIT_S
    last = err[err.rindex("error: ") :]
    assert "error: rank 1 failed: KeyError" in last and "row 21 is broken" in last
    assert "raised while reading row 21 of the data set" in last
    assert "reading window 2 of epoch 0, step " in last and 'hangs.py", line' in last
