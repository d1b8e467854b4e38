"""`drumline train`: a recipe on every device."""

from __future__ import annotations

import datetime
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from drumline.cli.launch import finish, log_of
from drumline.cli.options import Overrides, Recipe
from drumline.cli.plan import plan_run, print_plan

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.launcher.start import Result
    from drumline.rundir import RunDir


def register(app: typer.Typer) -> None:
    """Add the command `train`."""
    app.command("train")(train)


def train(recipe: Recipe, overrides: Overrides = None) -> None:
    """Train a recipe on every device of this machine; metrics and report data go to the run directory."""
    from drumline.config.load import dump_config, load_config
    from drumline.hardware.doctor import environment_facts
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.start import start_workers
    from drumline.rundir import RunDir, write_atomic, write_json

    config = load_config(recipe, overrides or ())
    plan = plan_run(config, counts=False)
    run = RunDir.create(directory_of(config, recipe))
    write_atomic(run.config, dump_config(config))
    write_json(run.env, environment_facts(deep=False))
    write_json(run.plan, plan.to_json())  # the workers complete it once they have counted the rows
    spec = LaunchSpec(run.path, plan.world_size, "module", "drumline.worker", (str(run.path),), plan.gpus)
    print(f"run: {run.path}")
    print_plan(plan)
    sys.stdout.flush()  # the workers write to the same stream
    result = start_workers(spec)
    record_end(run, result)
    finish(result, run)
    print(summary(run))


def directory_of(config: RunConfig, recipe: str) -> Path:
    """run_dir, or runs/<name>; without a name, recipe, date and time."""
    name = config.name or f"{Path(recipe).stem}-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S')}"
    return config.run_dir or Path("runs") / name


def record_end(run: RunDir, result: Result) -> None:
    """Add to exit.json and events.jsonl what the launcher knows: a signal, a killed rank, an end before a start."""
    from drumline.rundir import LineWriter, read_json, write_json

    if result.exit_status == 0:
        return
    known = read_json(run.exit) if run.exit.exists() else {}
    if result.failure is not None:
        reason, told = "failed", result.failure.message in known.get("message", "")
        message = str(result.failure.to_error(log_of(result.failure, run)))
    else:
        reason, told = "interrupted", known.get("reason") == "interrupted"
        message = f"interrupted by {result.interrupted.name}" if result.interrupted is not None else ""
    steps = known.get("steps", last_step(run))
    write_json(run.exit, {"exit_status": result.exit_status, "reason": reason, "message": message, "steps": steps})
    if not told:
        events = LineWriter(run.events)
        events.write({"event": reason, "message": message})
        events.close()


def last_step(run: RunDir) -> int:
    """Updates up to the last line of metrics.jsonl; 0 without one."""
    from drumline.rundir import read_lines

    return max((record["step"] for record in read_lines(run.metrics)), default=0)


def summary(run: RunDir) -> str:
    """Last evaluation and what to do next."""
    from drumline.rundir import read_lines

    last = None
    for record in read_lines(run.metrics):
        last = record if record.get("kind") == "eval" else last
    found = (
        f"evaluation loss {last['loss']:.4f}"
        if last is not None and math.isfinite(last.get("loss", math.nan))
        else "done"
    )
    return f"{found}; for plots and tables: drumline report {run.path}"
