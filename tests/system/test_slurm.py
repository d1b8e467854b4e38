"""Training and prediction as tasks of a real SLURM job."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.rundir import read_lines
from tests.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = pytest.mark.system

TASKS = "--ntasks=2"
DRUMLINE = (sys.executable, "-m", "drumline")
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def training(run: Path) -> list[str]:
    changes = ["train.max_steps=12", "train.schedule.warmup_steps=2", "checkpoint.every=null", f"run_dir={run}"]
    changes += ["train.epochs=null", "evaluate.every=end", "track.every=1"]
    return [*DRUMLINE, "train", "quickstart", *(part for change in changes for part in ("--set", change))]


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_lines(run / "metrics.jsonl") if line["kind"] == "train"}


def test_a_signal_of_slurm_stops_a_run_that_goes_on_later(cluster: SlurmCluster, tmp_path: Path) -> None:
    whole = cluster.run("srun", TASKS, *training(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    start = next(line for line in read_lines(tmp_path / "whole/events.jsonl") if line["event"] == "start")
    assert (start["world_size"], start["launcher"]) == (2, "slurm")
    assert sorted(losses(tmp_path / "whole")) == list(range(1, 13))

    run = tmp_path / "run"
    step = cluster.begin("srun", TASKS, "--job-name=stopped", *training(run))
    limit = time.monotonic() + LIMIT_S
    while not (run.exists() and losses(run)):
        assert step.poll() is None and time.monotonic() < limit
        time.sleep(0.05)
    cluster.run("scancel", "--name=stopped", "--signal=USR1")
    output, _ = step.communicate(timeout=LIMIT_S)
    assert step.returncode == 3, output
    assert re.search("interrupted by SIGUSR1", output)
    stopped_at = json.loads((run / "exit.json").read_text())["steps"]
    assert 0 < stopped_at < 12
    again = cluster.run("srun", TASKS, *training(run))
    assert again.returncode == 0, again.stdout + again.stderr
    assert losses(run) == losses(tmp_path / "whole")


def test_a_prediction_by_two_tasks_is_that_of_one_process(cluster: SlurmCluster, tmp_path: Path) -> None:
    rows = [{"id": number, "text": f"whale {number} is white" + ", very" * (number % 5)} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = Path(os.environ["DRUMLINE_TEST_ASSETS"]) / "smollm2"
    common = [*DRUMLINE, "infer", "--model", str(model), "--data", str(tmp_path / "rows.jsonl"), "--task", "score"]
    for name, command in (("two", ["srun", TASKS]), ("one", ["srun", "--ntasks=1"])):
        done = cluster.run(*command, *common, "--out", str(tmp_path / f"{name}.jsonl"))
        assert done.returncode == 0, done.stdout + done.stderr
    two = (tmp_path / "two.jsonl").read_bytes()
    assert two.count(b"\n") == 40 and two == (tmp_path / "one.jsonl").read_bytes()
