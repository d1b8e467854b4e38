"""`drumline config`: see, copy, check and document recipes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Json, Overrides, Recipe
from drumline.cli.output import print_json, print_table

Deep = Annotated[bool, typer.Option("--deep", help="Also read the data and build the model, in a child process.")]


def register(app: typer.Typer) -> None:
    """Add the commands below `config`."""
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="See, copy, check and document recipes.")
    commands.command("list")(list_recipes)
    commands.command("copy")(copy_recipe)
    commands.command("show")(show_recipe)
    commands.command("validate")(validate_recipe)
    commands.command("schema")(print_schema)
    app.add_typer(commands, name="config")


def list_recipes(as_json: Json = False) -> None:
    """List the packed recipes, each with what it is for."""
    from drumline.config.recipes import describe_recipe, find_recipe, recipe_names

    recipes = [(name, describe_recipe(find_recipe(name)), str(find_recipe(name))) for name in recipe_names()]
    if as_json:
        print_json([{"name": name, "description": about, "path": path} for name, about, path in recipes])
    else:
        print_table(["recipe", "what it is for"], [recipe[:2] for recipe in recipes])


def copy_recipe(
    recipe: Recipe,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File to write, or a folder to write it into.")],
) -> None:
    """Copy a recipe, and a model.py that it brings, to files of your own, to be changed and trained."""
    from drumline.config.recipes import copy_recipe

    for copy in copy_recipe(recipe, path):
        typer.echo(copy)


def show_recipe(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print every setting as YAML: defaults, recipe, then --set."""
    from drumline.config.load import dump_config, load_config

    typer.echo(dump_config(load_config(recipe, overrides or ())), nl=False)


def validate_recipe(recipe: Recipe, overrides: Overrides = None, deep: Deep = False) -> None:
    """Check keys, values and their combination. For what this machine says to them: drumline plan."""
    from drumline.config.load import dump_config, load_config
    from drumline.config.problem import refuse
    from drumline.plan.rules import config_problems

    config = load_config(recipe, overrides or ())
    if problems := config_problems(config):
        raise refuse(problems)
    if deep:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(dump_config(config))
            file.flush()
            # In a child, since it needs torch: the command itself stays quick to start.
            status = subprocess.run([sys.executable, "-m", "drumline.build", file.name], check=False).returncode
        if status:
            raise typer.Exit(status)
    typer.echo(f"{recipe} is valid")


def print_schema() -> None:
    """Print the JSON schema of a recipe, for editors."""
    from drumline.config.schema import RunConfig

    print_json(RunConfig.model_json_schema())
