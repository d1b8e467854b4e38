"""What is wrong with a configuration: one record a mistake, and the one error that reports them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.errors import ConfigError

Key = tuple[str | int, ...]
"""Path of a value: names of sections and fields, positions in lists."""

_LONGEST = 60
"""Characters of a value that an error repeats."""
LONGEST_NAME, MOST_WORDS = 64, 6
"""Characters and words of a name that is shown as it is."""


@dataclass(frozen=True)
class Place:
    """Where a value was written, and a scalar's text as it stands there."""

    source: str
    line: int | None = None
    text: str | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source} line {self.line}"


@dataclass(frozen=True)
class Problem:
    """One mistake. `place` is None where a rule, not a written value, is broken; `key` may be empty."""

    place: Place | None
    key: Key
    what: str
    fix: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.place or ""), dotted(self.key), self.what) if part)


def refuse(problems: Sequence[Problem]) -> ConfigError:
    """Make the error that reports all problems, a line each, recipe before overrides, each with its fix."""
    if len(problems) == 1:
        return ConfigError(str(problems[0]), problems[0].fix)
    lines = (f"{problem}; {problem.fix}" for problem in sorted(problems, key=_order))
    return ConfigError("\n".join(lines), f"correct all {len(problems)}, the first one first")


def _order(problem: Problem) -> tuple[bool, int]:
    line = problem.place.line if problem.place else None
    return line is None, line or 0


def dotted(key: Key) -> str:
    """Write a key as --set takes it: ('train', 'lr') -> 'train.lr'."""
    return ".".join(str(part) for part in key)


def listed(words: Sequence[str], last: str = "or") -> str:
    """Write words as a sentence does: 'a, b or c'."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def shown_name(name: str) -> str:
    """A column's or a class's name for logs and errors; one that reads like a text, and may be one, by its length.

    A table without a header has its first row there, and a column of texts taken for the label has them as classes.
    """
    if len(name) <= LONGEST_NAME and len(name.split()) <= MOST_WORDS and name.isprintable():
        return name
    return f"(a name of {len(name):,} characters)"


def shown(value: Any) -> str:
    """Write a value as a reader of YAML would name it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= _LONGEST else f"'{value[:_LONGEST]}...'"
    return str(value)
