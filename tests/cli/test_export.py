"""`drumline export` as a real command, on a run that the real command has trained."""

from __future__ import annotations

from pathlib import Path

import torch

from drumline.engine.checkpoint import read_checkpoint
from drumline.engine.weight_files import read_file
from drumline.manifest import newest_valid
from drumline.rundir import RunDir, read_lines
from tests.cli.real_command import Command, write_recipe


def test_a_run_of_two_ranks_is_exported_and_another_begins_with_it(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path)
    assert Command(folder, "train", "tiny.yaml", "--set", "train.averaging.kind=ema").wait().status == 0
    ended = Command(folder, "export", "runs/tiny", "out").wait()
    assert (ended.status, ended.out) == (0, "out: averaged weights after update 6 (model.safetensors)\n"), ended.err
    found = read_file(folder / "out" / "model.safetensors")
    path, _ = newest_valid(RunDir(folder / "runs" / "tiny"))
    assert path is not None
    averages = read_checkpoint(path)["strategy"]["average"]["averages"]
    torch.testing.assert_close(found, dict(averages), rtol=0, atol=0)

    best = Command(folder, "export", "runs/tiny", "best", "--step", "best").wait()
    assert best.status == 0 and best.out.startswith("best: averaged weights after update "), best.err
    wrong = Command(folder, "export", "runs/tiny", "none", "--step", "newest").wait()
    assert wrong.status == 2 and "'newest' is neither the number of an update nor best" in wrong.err
    assert not (folder / "none").exists()

    again = Command(folder, "export", "runs/tiny", "out").wait()
    assert again.status == 2
    assert "out exists already" in again.err

    initial = ["--set", "checkpoint.initial=out", "--set", "name=second", "--set", "train.max_steps=1"]
    assert Command(folder, "train", "tiny.yaml", *initial).wait().status == 0
    (told,) = [line for line in read_lines(RunDir(folder / "runs" / "second").events) if line["event"] == "initial"]
    assert (told["source"], told["optimizer"]) == ("weights", False)
