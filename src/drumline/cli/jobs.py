"""`drumline jobs`: submit, list, show, follow, cancel and retry, at a running service or in its data directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.options import Json
from drumline.cli.output import print_columns, print_json
from drumline.cli.service_options import Place, placed

if TYPE_CHECKING:
    from drumline.service.views import JobDetail, JobView

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job.")]
MaybeRecipe = Annotated[
    str | None, typer.Argument(metavar="[RECIPE]", help="Train this: a packed recipe's name or a YAML file.")
]
Model = Annotated[
    str | None, typer.Option("--model", help="Fine-tune this: a name that the service knows, a folder, or a hub name.")
]
DataPaths = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="PATH", help="Where the service finds the rows; @FILE sends a file's own instead."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the run, e.g. train.lr=0.001; may be given again."),
]
JobSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--job", metavar="KEY=VALUE", help="Set one of the job, e.g. resources.devices=2, name=x, tags=[a]; again too."
    ),
]
States = Annotated[list[str] | None, typer.Option("--state", help="Only jobs in this state; may be given again.")]
Text = Annotated[str | None, typer.Option("--text", help="Only those with this in id, name, model or tag.")]
Most = Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest.")]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")]
Source = Annotated[str, typer.Option(help="Which log: command, launcher or rank_<n>.")]
Tail = Annotated[int | None, typer.Option("--tail", metavar="N", min=1, max=10_000, help="Only the last N lines.")]
FromCheckpoint = Annotated[
    bool, typer.Option("--from-checkpoint", help="Go on from its newest checkpoint rather than from the beginning.")
]

HEADER = ("job", "state", "step", "loss", "age", "devices", "owner", "what")
WAITS_FOR_A_SERVICE = "it runs once a service runs on this data directory: drumline serve"


def register(app: typer.Typer) -> None:
    """Add the commands below `jobs`."""
    about = "Submit, watch and stop jobs, at a running service (--url) or in its data directory."
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    every: tuple[tuple[str, Callable[..., None]], ...] = (
        ("submit", submit),
        ("list", list_jobs),
        ("show", show),
        ("logs", logs),
        ("cancel", cancel),
        ("retry", retry),
    )
    for name, command in every:
        commands.command(name)(placed(command))
    app.add_typer(commands, name="jobs")


def submit(
    place: Place,
    recipe: MaybeRecipe = None,
    model: Model = None,
    data: DataPaths = None,
    settings: Settings = None,
    job: JobSettings = None,
    as_json: Json = False,
) -> None:
    """Queue a training (RECIPE) or a fine-tuning (--model and --data); prints the job's id.

    With --job kind=infer the model answers the rows of --data; --job 'task={kind: ...}' says what is asked.
    """
    from drumline.cli.job_request import request_of

    request = request_of(recipe, model, data or (), settings or (), job or ())
    with place.jobs(may_be_new=True) as jobs:
        made = jobs.submit(request)
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(made.id)
    if place.url is None:
        typer.echo(WAITS_FOR_A_SERVICE, err=True)


def list_jobs(place: Place, state: States = None, text: Text = None, limit: Most = 50, as_json: Json = False) -> None:
    """List jobs, the newest first."""
    from itertools import islice

    from drumline.cli.screen import readers_may_leave

    with place.jobs() as jobs:
        found = list(islice(jobs.list(state=state, q=text), limit))
    if as_json:
        print_json([job.model_dump(mode="json") for job in found])
    elif not found:
        typer.echo("there are no jobs" + (" like this" if state or text else ""))
    else:
        with readers_may_leave():
            print_columns(HEADER, [row(job) for job in found])


def show(job_id: JobId, place: Place, as_json: Json = False) -> None:
    """Show everything of a job: where it stands, why it waits or failed, and what became of it."""
    with place.jobs() as jobs:
        job = jobs.get(job_id)
    if as_json:
        print_json(job.model_dump(mode="json"))
        return
    for name, value in told(job).items():
        typer.echo(f"{name:<13} {value}")


def logs(job_id: JobId, place: Place, follow: Follow = False, source: Source = "command", tail: Tail = None) -> None:
    """Print a job's log; -f follows it to its last line, also over restarts of the service."""
    from drumline.cli.screen import readers_may_leave

    with place.jobs() as jobs, readers_may_leave():
        for line in jobs.logs(job_id, source=source, follow=follow, tail=tail):
            print(line, flush=follow)


def cancel(job_id: JobId, place: Place, as_json: Json = False) -> None:
    """Ask a job to save and end; one that still waits ends at once."""
    with place.jobs() as jobs:
        job = jobs.cancel(job_id)
    tell(job, as_json)


def retry(job_id: JobId, place: Place, from_checkpoint: FromCheckpoint = False, as_json: Json = False) -> None:
    """Do an ended job's work once more, as a new job; prints the new one's id."""
    with place.jobs() as jobs:
        job = jobs.retry(job_id, from_checkpoint=from_checkpoint)
    if as_json:
        print_json(job.model_dump(mode="json"))
        return
    typer.echo(job.id)
    if place.url is None:
        typer.echo(WAITS_FOR_A_SERVICE, err=True)


def tell(job: JobView, as_json: bool) -> None:
    """Print a job in one line, or as JSON."""
    if as_json:
        print_json(job.model_dump(mode="json"))
    else:
        typer.echo(f"{job.id} is {job.state}" + (f": {job.message}" if job.message else ""))


def row(job: JobView) -> list[str]:
    """A job as a line of the table."""
    from drumline.track.units import duration, plain

    progress = job.progress
    done, of = progress.step, progress.num_steps
    if job.kind == "infer":
        done, of = progress.rows_done, progress.rows_total
    step = "" if done is None else f"{done:,}"
    step += f"/{of:,}" if step and of else ""
    return [
        job.id,
        job.state,
        step,
        "" if progress.loss is None else plain(progress.loss),
        duration(seconds_since(job.created_at)),
        str(len(job.devices) or job.resources.devices),
        job.owner,
        job.name or job.model_name or job.kind,
    ]


def told(job: JobDetail) -> Mapping[str, str]:
    """What is shown of a job, by name; what is not known is left out."""
    from drumline.track.units import duration, plain

    progress = job.progress
    values: dict[str, Any] = {
        "job": job.id,
        "name": job.name,
        "state": job.state,
        "waits for": job.waits_for,
        "why": job.message,
        "fix": job.fix,
        "owner": job.owner,
        "kind": job.kind,
        "model": job.model_name,
        "tags": ", ".join(job.tags),
        "created": job.created_at,
        "started": job.started_at,
        "ended": job.ended_at,
        "asked for": f"{job.resources.devices} devices, priority {job.resources.priority}",
        "devices": ", ".join(job.devices),
        "attempt": job.attempt or None,
        "step": None if progress.step is None else f"{progress.step} of {progress.num_steps or 'unknown'}",
        "rows": None if progress.rows_done is None else f"{progress.rows_done:,} of {progress.rows_total or 'unknown'}",
        "failed rows": progress.rows_failed or None,
        "loss": None if progress.loss is None else plain(progress.loss),
        "best loss": None if job.best_loss is None else plain(job.best_loss),
        "left": None if progress.eta_s is None or job.ended_at else duration(progress.eta_s),
        "took": None if job.training_time is None else duration(job.training_time),
        "written to": job.output_path or job.model_path,
        "retry of": job.retry_of,
        "note": job.note,
    }
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def seconds_since(moment: str) -> float:
    """Since a moment in RFC 3339."""
    from datetime import UTC, datetime

    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
