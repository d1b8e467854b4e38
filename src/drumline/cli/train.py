"""`drumline train`: a recipe on every device."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from drumline.cli.launch import finish
from drumline.cli.options import Overrides, Recipe

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
    from drumline.hardware.inventory import detect
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.start import start_workers
    from drumline.plan.resolve import resolve
    from drumline.rundir import RunDir, write_atomic, write_json

    config = load_config(recipe, overrides or ())
    plan = resolve(config, detect())
    run = RunDir.create(directory_of(config, recipe))
    write_atomic(run.config, dump_config(config))
    write_json(run.env, environment_facts(deep=False))
    spec = LaunchSpec(run.path, plan.world_size, "module", "drumline.worker", (str(run.path),), plan.gpus)
    print(f"run: {run.path}")
    result = start_workers(spec)
    record_end(run, result)
    finish(result, run)
    print(summary(run))


def directory_of(config: RunConfig, recipe: str) -> Path:
    """run_dir, or runs/<name>; without a name, recipe, date and time."""
    name = config.name or f"{Path(recipe).stem}-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S')}"
    return config.run_dir or Path("runs") / name


def record_end(run: RunDir, result: Result) -> None:
    """Write exit.json where no rank lived to do it."""
    from drumline.rundir import write_json

    if result.interrupted is not None:
        end: dict[str, Any] = {"exit_status": result.exit_status, "reason": "interrupted", "message": ""}
    elif result.failure is not None and not run.exit.exists():
        end = {"exit_status": result.exit_status, "reason": "failed", "message": result.failure.message}
    else:
        return
    write_json(run.exit, end)


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
