"""Stands in for `drumline finetune|train|export` where a test is about who starts them: the same files, no torch.

The model's name says what happens: quick, long (until SIGTERM, on which it is saved), deaf (to SIGTERM), early
(until SIGTERM, before there is a run), bad (a bad request), failing, slow export.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from drumline.rundir import Lock, RunDir, write_json


def option(arguments: list[str], name: str) -> list[str]:
    """Every value of an option that may be given again."""
    return [value for key, value in pairwise(arguments) if key == name]


def finetune(arguments: list[str]) -> int:
    """A run of a few lines."""
    [model] = option(arguments, "--model")
    if model == "bad":
        print("a warning of some library", file=sys.stderr)
        print("error: there is no such model\n  fix: name another", file=sys.stderr)
        return 2
    if "--dry-run" in arguments:
        print("a warning of some library", file=sys.stderr)
        print(json.dumps({"config": {"task": {"kind": "language_modelling"}}, "reasons": {"a": "b"}}, indent=2))
        return 0
    while model == "early":
        time.sleep(0.02)
    settings = dict(text.split("=", 1) for text in option(arguments, "--set"))
    run = RunDir.create(Path(json.loads(settings["run_dir"])))
    run.config.write_text(json.dumps({"model": model, "settings": settings, "data": option(arguments, "--data")}))
    return train(run, model)


def train(run: RunDir, model: str) -> int:
    """The part that takes its time."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if model == "deaf" else lambda number, frame: asked.append(number))
    _ = Lock(run, "launch")
    # In the process group of the command, as what it asks before a run is.
    subprocess.Popen(["sleep", "60"])
    write_json(run.plan, {"gpus": [], "world_size": 1, "steps": 2})
    line: dict[str, Any] = {"kind": "eval", "step": 2, "loss": 2.0, "elapsed_s": 0.1, "time": time.time()}
    with run.metrics.open("a") as metrics:
        metrics.write(json.dumps(line) + "\n")
    while model in ("long", "deaf") and not asked:
        time.sleep(0.02)
    status = 3 if asked else 1 if model == "failing" else 0
    message = {3: "interrupted by SIGTERM", 1: "it is NaN\n  fix: lower the rate"}.get(status, "")
    write_json(run.exit, {"exit_status": status, "message": message, "steps": 2})
    return status


def main(command: str, *arguments: str) -> int:
    """Do as the command does."""
    if command == "finetune":
        return finetune(list(arguments))
    if command == "train":
        run = RunDir(Path(arguments[0]).parent)
        run.exit.unlink()
        return train(run, "quick")
    assert command == "export"
    run, out = RunDir(Path(arguments[0])), Path(arguments[1])
    if "slow export" in run.config.read_text():
        (out.parent / "exporting").touch()
        time.sleep(0.2)
    if out.exists():
        print(f"error: {out} exists already\n  fix: name another", file=sys.stderr)
        return 2
    out.mkdir()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
