"""`drumline export`: a run's weights as files that other programs read."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.run_directory import RunDirectory, Step, check_run

LIMIT_S = 3600.0
"""Most time that writing may take."""


class Weights(StrEnum):
    """Types that weights can be written in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def register(app: typer.Typer) -> None:
    """Add the command `export`."""
    app.command("export")(export)


def export(
    run: RunDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    step: Step = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the adapter alone, in peft's format, instead of merging it.")
    ] = False,
    weights: Annotated[
        Weights | None, typer.Option(help="Type of the weights that are written; unless given, as they were trained.")
    ] = None,
) -> None:
    """Write a run's weights as safetensors, and of a Hugging Face model a folder that transformers loads.

    In the folder are the model, with its adapter merged into it, tokenizer and chat template, generation config and a
    model card. Where the run averages its weights (train.averaging), the average is written, as it is what is
    evaluated.
    """
    from drumline.errors import ConfigError, DataError
    from drumline.hardware.torch_child import ask_child
    from drumline.rundir import remove_unfinished

    check_run(run)
    wishes = {"step": step, "adapter": adapter, "weights": None if weights is None else weights.value}
    arguments = ["-P", "-m", "drumline.build.export", str(run), str(out), json.dumps(wishes)]
    try:
        answer = ask_child(arguments, LIMIT_S, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    finally:
        remove_unfinished(out)  # where it was interrupted
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
        typer.echo(f"{folder} is not there any more: the tokenizer was not copied", err=True)
    what = "adapter" if adapter else "weights"
    what = f"averaged {what}" if answer["averaged"] else what
    what += " with the adapter merged into them," if answer["merged"] else ""
    typer.echo(f"{out}: {what} after update {answer['step']:,} ({', '.join(answer['files'])})")
