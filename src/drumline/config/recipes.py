"""Finds the recipes that come with drumline, and the files they refer to."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from drumline.errors import ConfigError

PREFIX = "recipes:"
"""Begins a path that is meant from the recipes folder."""

_PACKED_CODE = re.compile(rf"{PREFIX}([\w.-]+\.py)\b")
"""A Python file beside the packed recipes, as a recipe names it."""


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


def copy_recipe(name_or_path: str | Path, target: Path) -> list[Path]:
    """Copy a recipe to a new file, or into a folder, with the packed Python files that it names; return the copies.

    The copy names its own Python files; packed data stays where it is. Raises ConfigError where a file is there.
    """
    source = find_recipe(name_or_path)
    target = target / source.name if target.is_dir() else target
    content = _read(source).decode(errors="surrogateescape")
    code = {name: target.parent / name for name in _PACKED_CODE.findall(content)}
    content = _PACKED_CODE.sub(lambda found: str(code[found[1]]), content)
    copies = {target: content.encode(errors="surrogateescape")}
    copies |= {path: _read(recipes_folder() / name) for name, path in code.items()}
    for path in copies:
        if path.exists():
            raise ConfigError(f"{path} exists already", "choose another name, or remove the file first")
    for path, data in copies.items():
        try:
            with path.open("xb") as file:
                file.write(data)
        except OSError as error:
            raise _cannot_copy(error) from None
    return list(copies)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _cannot_copy(error) from None


def _cannot_copy(error: OSError) -> ConfigError:
    return ConfigError(f"{error.filename}: cannot be copied: {error.strerror}", "check both paths")


def expand_path(text: str) -> Path | str:
    """Put the recipes folder in place of a leading `recipes:`; any other text is returned as it is."""
    return recipes_folder() / text.removeprefix(PREFIX) if text.startswith(PREFIX) else text
