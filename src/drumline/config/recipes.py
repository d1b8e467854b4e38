"""Finds the recipes that come with drumline, and the files they refer to."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from drumline.errors import ConfigError

PREFIX = "recipes:"
"""Begins a path that is meant from the recipes folder."""


def recipes_folder() -> Path:
    """The folder of packed recipes: beside the code in an installed package, at the root of a source tree."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def recipe_names() -> list[str]:
    """Names of the packed recipes, sorted."""
    return sorted(path.stem for path in recipes_folder().glob("*.yaml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a packed recipe (a bare name) or of a path. Raises ConfigError for a name that is neither."""
    path, text = Path(name_or_path), str(name_or_path)
    if text in recipe_names():
        return recipes_folder() / f"{text}.yaml"
    if path.exists() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    near = get_close_matches(text, recipe_names(), 1)
    fix = f"did you mean {near[0]}?" if near else "see the names with: drumline config list"
    raise ConfigError(f"there is no recipe named {text!r}, nor a file", f"{fix} (a file's name ends in .yaml)")


def describe_recipe(path: Path) -> str:
    """What a recipe is for: its first line, where that is a comment."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def copy_recipe(name_or_path: str | Path, target: Path) -> Path:
    """Copy a recipe to a new file, or into a folder, and return the file. Raises ConfigError where one is there."""
    source = find_recipe(name_or_path)
    target = target / source.name if target.is_dir() else target
    try:
        content = source.read_bytes()
        with target.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise ConfigError(f"{target} exists already", "choose another name, or remove the file first") from None
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be copied: {error.strerror}", "check both paths") from None
    return target


def expand_path(text: str) -> Path | str:
    """Put the recipes folder in place of a leading `recipes:`; any other text is returned as it is."""
    return recipes_folder() / text.removeprefix(PREFIX) if text.startswith(PREFIX) else text
