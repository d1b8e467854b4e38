"""`drumline checkpoints`: what a run has saved, and whether it would load."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from drumline.cli.options import Json
from drumline.cli.output import print_json, print_table
from drumline.cli.run_directory import RunDirectory, check_run

if TYPE_CHECKING:
    from drumline.manifest import Listed


def register(app: typer.Typer) -> None:
    """Add the command `checkpoints`."""
    app.command("checkpoints")(checkpoints)


def checkpoints(run: RunDirectory, as_json: Json = False) -> None:
    """List a run's checkpoints, newest first: step, size, age, metrics, and whether each is whole.

    Every file is read and compared with its checksum.
    """
    from drumline.manifest import check, checkpoints_of
    from drumline.rundir import RunDir

    check_run(run)
    found = [(listed, check(listed.path)) for listed in checkpoints_of(RunDir(run))]
    if as_json:
        print_json([as_record(listed, problems) for listed, problems in found])
    elif not found:
        typer.echo(f"{run} has no checkpoint")
    else:
        from drumline.track.units import duration, size

        rows = [
            [
                f"{listed.step:,}",
                size(listed.bytes),
                duration(time.time() - listed.time),
                metrics(listed),
                state(problems),
            ]
            for listed, problems in found
        ]
        print_table(["step", "size", "age", "metrics", "state"], rows)


def as_record(listed: Listed, problems: list[str]) -> dict[str, Any]:
    """One checkpoint as JSON."""
    record = {**listed._asdict(), "path": str(listed.path), "metrics": dict(listed.metrics)}
    return {**record, "valid": not problems, "problems": problems}


def metrics(listed: Listed) -> str:
    """Of an evaluation at this step, the loss first."""
    from drumline.track.units import plain

    names = sorted(listed.metrics, key=lambda name: (name != "loss", name))
    return ", ".join(f"{name} {plain(listed.metrics[name])}" for name in names)


def state(problems: list[str]) -> str:
    """Valid, or what is wrong."""
    return "; ".join(problems) or "valid"
