"""`drumline eval`: a run's task and metrics on its held-out data, or on other data, on every device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.launch import finish
from drumline.cli.options import Json, Overrides
from drumline.cli.output import print_json, print_table
from drumline.cli.plan import plan_run
from drumline.cli.run_directory import RunDirectory, Step, check_run

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig

RESULT = "evaluation.json"
"""What the workers leave in the launch's directory; see build/evaluate.py."""


def register(app: typer.Typer) -> None:
    """Add the command `eval`."""
    app.command("eval")(evaluate)


def evaluate(
    run: RunDirectory,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Files with other held-out rows, of the run's own kind; may be given again."),
    ] = None,
    step: Step = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's checkpoint on every device: the run's task, metrics and held-out data.

    On the run's own data the numbers are those that the run itself had at that update, and both are shown.
    """
    from drumline.config.evaluation import evaluation_config
    from drumline.config.kept import checkpoint_of
    from drumline.config.load import load_config
    from drumline.manifest import read_manifest
    from drumline.rundir import RunDir, read_json

    check_run(run)
    path, skipped = checkpoint_of(RunDir(run), step)
    for problem in skipped:
        typer.echo(f"passed over: {problem}", err=True)
    plan = read_json(RunDir(run).plan) if RunDir(run).plan.is_file() else {}
    config = evaluation_config(load_config(RunDir(run).config, overrides or ()), data or (), plan.get("micro_batch"))
    found = run_evaluation(config, path, run.resolve().name)
    manifest = read_manifest(path)
    before = dict(manifest.metrics) if not data else {}
    if as_json:
        print_json({"step": manifest.step, "data": data, "metrics": found, "in_run": before or None})
    else:
        show(found, before, f"{run}, after update {manifest.step:,}")


def run_evaluation(config: RunConfig, checkpoint: Path, name: str) -> dict[str, Any]:
    """Launch the workers of an evaluation and wait for what they find; of one that fails the logs are left."""
    import shutil

    from drumline.config.load import dump_config
    from drumline.hardware.claims import Claims
    from drumline.launcher.restarts import Policy, of_spec, run_with_restarts
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.start import launch_directory
    from drumline.rundir import read_json, write_atomic, write_json

    claims = Claims(str(checkpoint.absolute()))  # held to the end of this process
    plan = plan_run(config, counts=False, claims=claims)
    run = launch_directory(f"eval-{name}")
    write_atomic(run.config, dump_config(config))
    write_json(run.plan, plan.to_json())
    arguments = (str(run.path.absolute()), str(checkpoint.absolute()))
    spec = LaunchSpec(run.path, plan.world_size, "module", "drumline.build.evaluate", arguments, plan.gpus)
    finish(run_with_restarts(of_spec(spec.heeding(config.faults)), Policy.of(config, unless_said=0)), run)
    found: dict[str, Any] = read_json(run.path / RESULT)
    shutil.rmtree(run.path)
    return found


def show(found: dict[str, Any], before: dict[str, Any], title: str) -> None:
    """A line a metric, with what the run itself had where it was evaluated after that update."""
    from drumline.track.units import plain

    typer.echo(title)
    header = ["metric", "value", *(["in the run"] if before else [])]
    rows = [
        [name, plain(value), *([plain(before[name]) if name in before else ""] if before else [])]
        for name, value in found.items()
    ]
    print_table(header, rows)
