"""`drumline train`: a recipe on every device."""

from __future__ import annotations

import datetime
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from drumline.cli.launch import finish, log_of
from drumline.cli.options import Overrides, Recipe
from drumline.cli.plan import plan_run, print_plan

if TYPE_CHECKING:
    from drumline.config.kept import Kept
    from drumline.config.schema import RunConfig
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.start import Result
    from drumline.plan.record import Plan
    from drumline.rundir import Lock, RunDir


def register(app: typer.Typer) -> None:
    """Add the command `train`."""
    app.command("train")(train)


def train(recipe: Recipe, overrides: Overrides = None) -> None:
    """Train a recipe on every device of this machine; metrics and report data go to the run directory.

    Under torchrun or srun each process becomes a rank of one run.
    """
    from drumline.config.load import load_config

    config = load_config(recipe, overrides or ())
    train_in(directory_of(config, recipe), config)


def train_in(path: Path, config: RunConfig) -> None:
    """Train in this run directory, on from where it was left if it is there; ends the command as the run ended.

    One of several processes that torchrun, srun or someone else has started becomes a rank of the run.
    """
    from drumline.config.changes import with_global_batch
    from drumline.config.load import dump_config
    from drumline.hardware.claims import Claims
    from drumline.hardware.doctor import environment_facts
    from drumline.launcher.restarts import RECIPE_RESTARTS, Policy, run_with_restarts
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.world import detect_world
    from drumline.rundir import Lock, RunDir, write_atomic, write_json

    if detect_world().size > 1:
        become_rank(path, config)
    lock, kept = take_existing(path, config)
    if kept is not None and kept.finished is not None:
        print(f"{kept.describe(path)}\n{summary(RunDir(path))}")
        return
    bound = config if kept is None else with_global_batch(config, kept.global_batch)
    claims = Claims(str(path.absolute()))  # held to the end of this process
    plan = plan_run(bound, counts=False, claims=claims)
    run = RunDir(path) if kept is not None else RunDir.create(path)
    lock = lock or Lock(run, "launch")  # held to the end of this process
    write_atomic(run.config, dump_config(config))
    write_json(run.env, environment_facts(deep=False))
    write_json(run.plan, plan.to_json())  # the workers complete it once they have counted the rows
    spec = LaunchSpec(run.path, plan.world_size, "module", "drumline.worker", (str(run.path),), plan.gpus)
    spec = spec.heeding(config.faults)
    print(f"run: {run.path}")
    if kept is not None:
        tell_changes(run, kept)
    print_plan(plan)
    sys.stdout.flush()  # the workers write to the same stream
    spec_of = lambda gpus: spec if gpus is None else without_lost(spec, config, plan, gpus)  # noqa: E731
    result = run_with_restarts(spec_of, Policy.of(config, RECIPE_RESTARTS))
    record_end(run, result)
    finish(result, run)
    print(summary(run))


def become_rank(path: Path, config: RunConfig) -> NoReturn:
    """Go on in this process as one rank of a run; of all paths rank 0's counts."""
    from drumline.config.load import dump_config
    from drumline.launcher.spec import JOINED

    environ = {**os.environ, JOINED: dump_config(config)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "drumline.worker", str(path)], environ)


def without_lost(spec: LaunchSpec, config: RunConfig, plan: Plan, gpus: tuple[str, ...]) -> LaunchSpec:
    """What goes on with the GPUs that are left, planned anew for them; the global batch stays as it was planned."""
    from drumline.config.changes import with_global_batch
    from drumline.config.load import dump_config
    from drumline.rundir import write_atomic, write_json

    hardware = config.hardware.model_copy(update={"gpus": list(gpus), "count": None})
    left = with_global_batch(config.model_copy(update={"hardware": hardware}), plan.global_batch)
    anew = plan_run(left, counts=False, chosen=True)
    write_atomic(spec.run.config, dump_config(left))
    write_json(spec.run.plan, anew.to_json())
    return replace(spec, num_workers=anew.world_size, gpus=anew.gpus)


def take_existing(path: Path, config: RunConfig) -> tuple[Lock | None, Kept | None]:
    """Keep others out of a run directory that is there, and say what it binds this run to; both None where none is.

    Raises RunDirExists and ConfigError for one that cannot be gone on with.
    """
    from drumline.config.kept import is_there, read_kept
    from drumline.rundir import ENDING_S, STOP_REQUEST, Lock, RunDir

    if not is_there(path, config):
        return None, None
    run = RunDir(path)
    lock = Lock(run, "launch")
    Lock(run, "run", ENDING_S).release()  # nobody trains there any more, whoever was killed just before
    kept = read_kept(run, config)
    if kept.finished is None:
        run.exit.unlink(missing_ok=True)
        (run.requests / STOP_REQUEST).unlink(missing_ok=True)  # it was meant for an attempt that has ended
    return lock, kept


def tell_changes(run: RunDir, kept: Kept) -> None:
    """Say from where the run goes on; and which settings are not what they were, in events.jsonl too."""
    from drumline.rundir import LineWriter

    if kept.newest is None:
        print("  beginning anew: it has no checkpoint yet")
    else:
        print(f"  going on from its newest valid checkpoint; there is one of update {kept.newest}")
    for change in kept.changes:
        print(f"  changed: {change}")
    if kept.changes:
        events = LineWriter(run.events)
        events.write({"event": "changed", "settings": {each.name: [each.old, each.new] for each in kept.changes}})
        events.close()


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
        message = result.stopped or (f"interrupted by {result.interrupted.name}" if result.interrupted else "")
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
