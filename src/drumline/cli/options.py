"""Arguments and options that several commands take, written once."""

from __future__ import annotations

from typing import Annotated

import typer

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A packed recipe's name (see `drumline config list`) or a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key, e.g. train.lr=0.001; may be given again."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
