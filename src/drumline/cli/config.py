"""`drumline config`: see, copy, check and document recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.options import Json, Overrides, Recipe
from drumline.cli.output import print_json, print_table


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
    """Copy a recipe to a file of your own, to be changed and trained."""
    from drumline.config.recipes import copy_recipe

    typer.echo(copy_recipe(recipe, path))


def show_recipe(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print every setting as YAML: defaults, recipe, then --set."""
    from drumline.config.load import dump_config, load_config

    typer.echo(dump_config(load_config(recipe, overrides or ())), nl=False)


def validate_recipe(recipe: Recipe, overrides: Overrides = None) -> None:
    """Check keys, values and their combination. For what this machine says to them: drumline plan."""
    from drumline.config.load import load_config
    from drumline.config.problem import refuse
    from drumline.plan.rules import config_problems

    problems = config_problems(load_config(recipe, overrides or ()))
    if problems:
        raise refuse(problems)
    typer.echo(f"{recipe} is valid")


def print_schema() -> None:
    """Print the JSON schema of a recipe, for editors."""
    from drumline.config.schema import RunConfig

    print_json(RunConfig.model_json_schema())
