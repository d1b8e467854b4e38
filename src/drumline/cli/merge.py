"""`drumline merge`: answers made in shards elsewhere, in one file, if none is missing and none comes twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

LIMIT_S = 24 * 3600.0
"""Most time that merging may take."""


def register(app: typer.Typer) -> None:
    """Add the command `merge`."""
    app.command("merge")(merge)


def merge(
    shards: Annotated[
        list[Path],
        typer.Argument(
            metavar="SHARD...",
            help="Files (.jsonl, .json, .csv, .tsv, .parquet), folders of them, or a folder with gpu*/run_*/"
            "strategy_*.csv, of which the newest run counts.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to make: .jsonl, .csv or .parquet.")],
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column that names a row; 'id' unless given.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="ORIGINAL", help="File that was split: says which rows there must be, and their order."),
    ] = None,
) -> None:
    """Put shards of answers together in order; refuse those with gaps, duplicates or rows from elsewhere, by name.

    Without --data the ids must be whole numbers, of which none is left out between the smallest and the largest.
    """
    from drumline.errors import ConfigError, DataError
    from drumline.hardware.torch_child import ask_child

    wishes = {
        "shards": [str(path.absolute()) for path in shards],
        "out": str(out.absolute()),
        "id": id_column,
        "data": None if data is None else str(data.absolute()),
    }
    arguments = ["-P", "-m", "drumline.infer.merge_shards", json.dumps(wishes)]
    answer = ask_child(arguments, LIMIT_S, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    if "error" in answer:
        raise DataError(
            f"nothing was merged: {answer['error']}", "see whether the installation is sound: drumline doctor"
        )
    if "problem" in answer:
        kind = ConfigError if answer["code"] == ConfigError.code else DataError
        raise kind(answer["problem"], answer["fix"])
    for note in answer["notes"]:
        typer.echo(note, err=True)
    typer.echo(f"{out}: {answer['rows']:,} rows from {answer['shards']:,} shards")
