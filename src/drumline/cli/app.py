"""The command `drumline`: its commands, and the exit status that each kind of end has."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import drumline
from drumline.cli import (
    bench,
    chat,
    checkpoints,
    config,
    doctor,
    export,
    finetune,
    gpus,
    infer,
    jobs,
    launch,
    merge,
    monitor,
    plan,
    quickstart,
    report,
    serve,
    tokens,
    train,
)
from drumline.cli import eval as evaluation
from drumline.cli.output import print_error
from drumline.errors import DrumlineError

INTERRUPTED = 3
"""Exit status of a command that was interrupted (Ctrl-C)."""

COMMANDS = (
    quickstart,
    train,
    finetune,
    launch,
    plan,
    config,
    report,
    checkpoints,
    export,
    chat,
    evaluation,
    infer,
    merge,
    gpus,
    monitor,
    doctor,
    bench,
    serve,
    jobs,
    tokens,
)
"""One module a command. Each imports what is heavy inside its functions, so that `drumline --help` answers at once."""


class ExitStatusGroup(TyperGroup):
    """Gives every command the same ends: 0 done, 1 failed, 2 bad request, 3 interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors that a user can mend become a message and a status, all others stay tracebacks."""
        try:
            return super().invoke(ctx)
        except DrumlineError as error:
            print_error(error)
            raise typer.Exit(error.exit_status) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"drumline {drumline.__version__}")
        raise typer.Exit


# Plain text: it reads the same in a log as in a terminal, and importing rich would double the time to start.
app = typer.Typer(cls=ExitStatusGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Many GPUs, one beat: train models on every GPU you have, with the numbers of one."""


for _command in COMMANDS:
    _command.register(app)


def main() -> None:
    """Run the command line; ends the process with its exit status."""
    app(prog_name="drumline")
