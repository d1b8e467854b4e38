"""`drumline export`: a run's weights as files that other programs read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.run_directory import RunDirectory, check_run

LIMIT_S = 3600.0
"""Most time that writing may take."""


def register(app: typer.Typer) -> None:
    """Add the command `export`."""
    app.command("export")(export)


def export(
    run: RunDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    step: Annotated[
        int | None, typer.Option(help="Of the checkpoint after this update; unless given, the newest valid one.")
    ] = None,
) -> None:
    """Write a run's weights as safetensors, and of a Hugging Face model a folder that transformers loads.

    Where the run averages its weights (train.averaging), the average is written, as it is what is evaluated.
    """
    from drumline.errors import ConfigError, DataError
    from drumline.hardware.torch_child import ask_child

    check_run(run)
    arguments = ["-P", "-m", "drumline.build.export", str(run), str(out), *([] if step is None else [str(step)])]
    answer = ask_child(arguments, LIMIT_S, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    if "error" in answer:
        raise DataError(
            f"nothing was exported: {answer['error']}", "see whether the installation is sound: drumline doctor"
        )
    if "problem" in answer:
        kind = ConfigError if answer["code"] == ConfigError.code else DataError
        raise kind(answer["problem"], answer["fix"])
    for problem in answer["skipped"]:
        typer.echo(f"passed over: {problem}", err=True)
    for folder in answer["not_found"]:
        typer.echo(
            f"{folder} is not there any more: files beside the weights, such as a tokenizer, were not copied", err=True
        )
    what = "averaged weights" if answer["averaged"] else "weights"
    typer.echo(f"{out}: {what} after update {answer['step']:,} ({', '.join(answer['files'])})")
