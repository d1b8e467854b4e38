"""`drumline report`: a page with plots about a run, or about several beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.output import print_json, print_table

if TYPE_CHECKING:
    from drumline.track.comparison import ComparedRun
    from drumline.track.report import Summary


def register(app: typer.Typer) -> None:
    """Add the command `report`."""

    @app.command("report")
    def report(
        runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs, as in runs/NAME.")],
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder for the page and its PNGs; unless given RUN/report, for several runs a folder comparison "
                "beside the first."
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead.")] = False,
    ) -> None:
        """Write one self-contained HTML page about a run, or one that compares several, and its plots as PNGs.

        Of a prediction run (OUT.run) it shows throughput by worker, lengths, errors, and labels with their F1.

        Works for finished, failed and running runs alike, from their directories alone. Of several, a directory that
        holds no run with metrics is named and left out.
        """
        from drumline.track.prediction import is_prediction

        if len(runs) == 1 and is_prediction(runs[0]):
            _report_prediction(runs[0], out, as_json)
        elif len(runs) == 1:
            _report_one(runs[0], out, as_json)
        else:
            _compare(runs, out, as_json)


def _report_one(run: Path, out: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from drumline.track.report import read_run, summarise, write_report

    _check(run)
    page = write_report(run, out)
    summary = summarise(read_run(run))
    if as_json:
        print_json({"page": str(page), "images": _images(page), "summary": asdict(summary)})
    else:
        typer.echo(_headline(summary))
        typer.echo(f"report: {page}")


def _report_prediction(run: Path, out: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from drumline.track.prediction import read_prediction, summarise_prediction
    from drumline.track.prediction_page import prediction_headlines, write_prediction_report
    from drumline.track.prediction_plots import PREDICTION_PLOTS

    page = write_prediction_report(run, out)
    records = read_prediction(run)
    numbers = summarise_prediction(records)
    if as_json:
        images = [path for name in PREDICTION_PLOTS if (path := page.with_name(f"{name}.png")).exists()]
        document = {"page": str(page), "images": [str(path) for path in images], "summary": asdict(numbers)}
        print_json({**document, "answers": records.summary})
        return
    told = (
        f"{label} {value}{f' {note}' if note.startswith('of ') else ''}"
        for label, value, note in prediction_headlines(numbers)
    )
    typer.echo(", ".join([numbers.status, *told]))
    typer.echo(f"report: {page}")


def _compare(paths: Sequence[Path], out: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from drumline.errors import ConfigError
    from drumline.track.comparison import differences, read_runs, write_comparison

    kept, left_out = [], {}
    for path in paths:
        try:
            _check(path)
            kept.append(path)
        except ConfigError as error:
            if not path.is_dir():
                raise
            left_out[str(path)] = error.problem
    if not kept:
        raise ConfigError("none of these directories holds a run with metrics", "give those of runs, as in runs/NAME")
    runs = read_runs(kept)
    page = write_comparison(runs, out or _folder_beside(kept[0]))
    found = differences([run.records.settings for run in runs])
    if as_json:
        numbers = [{"name": run.label, "path": str(run.path), "summary": asdict(run.summary)} for run in runs]
        document = {"page": str(page), "images": _images(page), "runs": numbers}
        print_json({**document, "differences": found, "left_out": left_out})
        return
    for problem in left_out.values():
        typer.echo(f"left out: {problem}", err=True)
    _print_numbers(runs)
    if found:
        typer.echo(f"settings that differ: {', '.join(found)}")
    typer.echo(f"report: {page}")


def _images(page: Path) -> list[str]:
    from drumline.track.gpu_plots import GPU_PLOT
    from drumline.track.plots import PLOT_NAMES

    paths = [page.with_name(f"{name}.png") for name in (*PLOT_NAMES, GPU_PLOT)]
    return [str(path) for path in paths if path.exists()]  # that of GPUs only where any were recorded


def _folder_beside(run: Path) -> Path:
    """`comparison` in the folder that holds the run. Raises ConfigError where that is a run itself."""
    from drumline.errors import ConfigError
    from drumline.rundir import RunDir

    folder = run.resolve().parent / "comparison"
    if RunDir(folder).config.exists() or RunDir(folder).metrics.exists():
        raise ConfigError(f"{folder} is a run's own directory", "give another folder for the page with --out")
    return folder


def _check(run: Path) -> None:
    """Raise ConfigError for what is no run directory, or for a run that has neither metrics nor an end yet."""
    from drumline.errors import ConfigError
    from drumline.rundir import RunDir
    from drumline.track.prediction import is_prediction

    if is_prediction(run):
        raise ConfigError(f"{run} is a prediction run, which is compared with no other", "give it alone")
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
    words += [f"{name} {plain(value)}" for name, value in list(summary.last_eval_metrics.items())[:3]]
    return ", ".join(word for word in words if word)


def _print_numbers(runs: Sequence[ComparedRun]) -> None:
    from drumline.track.units import plain, rate, size

    def number(value: float | None) -> str:
        return "" if value is None else plain(value)

    evaluated = any(run.summary.best_eval_loss is not None for run in runs)
    rows = []
    for run in runs:
        found = run.summary
        losses = [found.last_eval_loss, found.best_eval_loss] if evaluated else [found.last_train_loss]
        speed = rate(found.units_per_s, found.unit) if found.units_per_s is not None else ""
        memory = size(found.memory_bytes) if found.memory_bytes is not None else ""
        rows.append([run.label, found.status, number(found.steps), *map(number, losses), speed, memory])
    names = ["eval loss", "best"] if evaluated else ["training loss"]
    print_table(["run", "state", "updates", *names, "speed", "memory"], rows)
