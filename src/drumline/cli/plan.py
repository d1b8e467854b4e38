"""`drumline plan`: what a run would do on this machine, and why, before a GPU is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from drumline.cli.options import Json, Overrides, Recipe
from drumline.cli.output import print_json, print_table

if TYPE_CHECKING:
    from drumline.plan.record import Plan


def register(app: typer.Typer) -> None:
    """Add the command `plan`."""
    app.command("plan")(show_plan)


def show_plan(recipe: Recipe, overrides: Overrides = None, as_json: Json = False) -> None:
    """Show what a run would do on this machine, and why. No GPU is touched."""
    from drumline.config.load import load_config
    from drumline.hardware.inventory import detect
    from drumline.plan.resolve import resolve

    plan = resolve(load_config(recipe, overrides or ()), detect())
    if as_json:
        print_json(plan.to_json())
    else:
        print_table(["", "plan", "why"], [(name, _cell(value), plan.reasons[name]) for name, value in _values(plan)])


def print_plan(plan: Plan) -> None:
    """Print one line a decision, with its reason: what `drumline train` shows before it takes a device."""
    for name, value in _values(plan):
        # The reason names the GPUs shorter than their UUIDs would.
        short = str(len(value)) if isinstance(value, tuple) else _cell(value)
        typer.echo(f"  {name:<15} {short:<13} {plan.reasons[name]}")


def _values(plan: Plan) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in plan.to_json().items() if name != "reasons"]


def _cell(value: object) -> str:
    if value is None:
        return "not known yet"
    return "\n".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
