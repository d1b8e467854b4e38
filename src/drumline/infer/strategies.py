"""Prompts with a name: those that are packed beside this file, and YAML files of the same form."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pydantic import Field

from drumline.config.load import validated
from drumline.config.problem import listed
from drumline.config.recipes import expand_path
from drumline.config.section import Section
from drumline.config.source import read_file
from drumline.errors import ConfigError

FOLDER = Path(__file__).with_name("strategies")
STRATEGIES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
"""Names of the prompts that come with the package."""


class Strategy(Section):
    """What a strategy's file holds."""

    description: str = Field("", description="What it is for, in a sentence.")
    system: str | None = Field(None, description="System message, with row fields in braces.")
    prompt: str = Field(min_length=1, description="What the model is asked, with row fields in braces.")
    labels: list[str] = Field(default=[], description="What may be answered; none: anything.")


def load_strategy(name: str) -> Strategy:
    """The strategy of a name, or in a YAML file. Raises ConfigError, with the names that there are, for neither."""
    if name in STRATEGIES:
        path = FOLDER / f"{name}.yaml"
    else:
        path = Path(expand_path(name)).expanduser()
        if path.suffix not in (".yaml", ".yml") and not path.is_file():
            near = get_close_matches(name, STRATEGIES, 1)
            hint = f"did you mean {near[0]}? There" if near else "there"
            raise ConfigError(
                f"there is no strategy named {name!r}, nor a file",
                f"{hint} are {listed(STRATEGIES, 'and')}; a file's name ends in .yaml",
            )
    empty = "write at least its prompt: 'prompt: \"Is this about cats? {text}\"'"
    return validated(read_file(path, called="a strategy", if_empty=empty), Strategy)
