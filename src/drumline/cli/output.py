"""How commands print: results on standard output, JSON on request, errors on standard error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from drumline.errors import DrumlineError


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header; long cells wrap at the terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    Console().print(table)


def print_error(error: DrumlineError) -> None:
    """Print what is wrong and the fix on standard error."""
    typer.echo(f"{typer.style('error', fg='red', bold=True)}: {error}", err=True)


def _plain(cell: str) -> Any:
    from rich.text import Text

    # A cell is never markup: a path or a reason may hold square brackets.
    return Text(cell)
