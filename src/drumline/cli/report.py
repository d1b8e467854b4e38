"""`drumline report`: a page with plots from a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from drumline.track.report import Summary


def register(app: typer.Typer) -> None:
    """Add the command `report`."""

    @app.command("report")
    def report(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory, as in runs/NAME.")],
        out: Annotated[
            Path | None, typer.Option(help="Folder for the page and its PNGs; RUN/report unless given.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead.")] = False,
    ) -> None:
        """Write one self-contained HTML page about a run, and its plots as PNGs beside it.

        Works for finished, failed and running runs alike, from the run's directory alone.
        """
        import json
        from dataclasses import asdict

        from drumline.track.plots import PLOT_NAMES
        from drumline.track.report import read_run, summarise, write_report

        _check(run)
        page = write_report(run, out)
        summary = summarise(read_run(run))
        if as_json:
            images = [str(page.with_name(f"{name}.png")) for name in PLOT_NAMES]
            typer.echo(json.dumps({"page": str(page), "images": images, "summary": asdict(summary)}, indent=2))
        else:
            typer.echo(_headline(summary))
            typer.echo(f"report: {page}")


def _check(run: Path) -> None:
    """Raise ConfigError for what is no run directory, or for a run that has neither metrics nor an end yet."""
    from drumline.errors import ConfigError
    from drumline.rundir import RunDir

    if not run.is_dir():
        raise ConfigError(f"there is no run directory {run}", "give the path of one, as in: drumline report runs/NAME")
    paths = RunDir(run)
    if any(path.exists() and path.stat().st_size for path in (paths.metrics, paths.exit)):
        return
    if paths.config.exists():
        raise ConfigError(
            f"the run in {run} has no metrics yet ({paths.metrics.name} is missing or empty)",
            f"wait for its first log line, or see what happened in {paths.logs}",
        )
    raise ConfigError(
        f"{run} is not a run directory: it has no {paths.metrics.name}",
        "give the directory of the run itself, as in: drumline report runs/NAME",
    )


def _headline(summary: Summary) -> str:
    from drumline.track.units import plain

    words = [summary.status, f"{summary.steps:,} updates" if summary.steps is not None else ""]
    if summary.last_eval_loss is not None:
        words.append(f"evaluation loss {plain(summary.last_eval_loss)}")
    if summary.best_eval_loss is not None:
        words.append(f"best {plain(summary.best_eval_loss)} at update {plain(summary.best_eval_step)}")
    return ", ".join(word for word in words if word)
