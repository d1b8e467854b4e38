"""The arguments by which commands take a run's directory and one of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, as in runs/NAME.")]


def as_step(text: str) -> int | Literal["best"]:
    """The value of --step."""
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise typer.BadParameter(f"'{text}' is neither the number of an update nor best")
    return int(text)


# One of the values of `as_step`, or None; typer knows no type for that.
Step = Annotated[
    Any,
    typer.Option(
        parser=as_step,
        metavar="N|best",
        help="The checkpoint after this update, or of the best evaluation by checkpoint.metric; unless given, the "
        "newest valid one.",
    ),
]


def check_run(run: Path) -> None:
    """Raise ConfigError for what is no run directory."""
    from drumline.errors import ConfigError
    from drumline.rundir import RunDir

    if not run.is_dir():
        raise ConfigError(f"there is no run directory {run}", "give the path of one, as in runs/NAME")
    if not RunDir(run).config.is_file():
        raise ConfigError(
            f"{run} is not a run directory: it has no {RunDir(run).config.name}",
            "give the directory of the run itself, as in runs/NAME",
        )
