"""A prompt with row fields in braces: what it is made of, and what it becomes of a row. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

from drumline.config.problem import shown_name
from drumline.errors import ConfigError, DataError

_PIECES = re.compile(r"(\{\{|\}\}|\{[^{}]*\}|[{}])")
_MEANT = re.compile(r"[.!:\[\]]|^\s|\s$|^$")
"""What str.format takes for an attribute, an index, a conversion or a form, so that a name with it could be either."""
_MOST_COLUMNS = 12


class Piece(NamedTuple):
    """A part of a prompt."""

    text: str
    """As it stands, or the name of a field."""
    is_field: bool


class PromptText:
    """A text in which `{name}` stands for that column of a row, and `{{` and `}}` for braces; nothing else is allowed.

    What a row holds is put in as it is: braces in it are braces. setting: what errors call the text.
    """

    def __init__(self, text: str, setting: str) -> None:
        """Raise ConfigError for a brace that is neither a field nor doubled, and for more in it than a name."""
        self.text = text
        self.pieces = tuple(_pieces(text, setting))
        self.fields = tuple(dict.fromkeys(piece.text for piece in self.pieces if piece.is_field))
        """Names of the columns that it needs, in their order."""

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text of a row. Raises DataError for a column that it lacks, or that holds no text and no number."""
        return "".join(field_text(values, piece.text) if piece.is_field else piece.text for piece in self.pieces)


def field_text(values: Mapping[str, Any], name: str) -> str:
    """What a row's column reads as: text, or a number or truth value as JSON writes it.

    Raises DataError, which never repeats the value, where there is no such column, or it holds something else.
    """
    if name not in values:
        there = [shown_name(str(column)) for column in values]
        more = f" and {len(there) - _MOST_COLUMNS} more" if len(there) > _MOST_COLUMNS else ""
        has = f"it has {', '.join(map(repr, there[:_MOST_COLUMNS]))}{more}" if there else "it has none at all"
        raise DataError(f"the row has no field {name!r}; {has}", "correct the row, or the name in the prompt")
    value = values[name]
    if isinstance(value, str):
        return checked(value, f"the field {name!r}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Real) and not is_absent(value):
        return str(value)
    what = "is empty" if is_absent(value) else f"is a {type(value).__name__}, not a text or a number"
    raise DataError(f"the field {name!r} {what}", "correct the row")


def is_absent(value: Any) -> bool:
    """Whether a row has no value there: None, or NaN, which stands for it in tables of pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def checked(text: str, what: str) -> str:
    """The text itself. Raises DataError where it has half a character, which no tokenizer takes."""
    if re.search("[\ud800-\udfff]", text):
        raise DataError(f"{what} has half a character (a lone surrogate), which no encoding has", "correct the row")
    return text


def _pieces(text: str, setting: str) -> list[Piece]:
    pieces: list[Piece] = []
    literal = ""
    for part in _PIECES.split(text):
        if part in ("{{", "}}"):
            literal += part[0]
        elif part in ("{", "}"):
            raise ConfigError(f"{setting} has a single {part}", "write {name} for a row's field, {{ and }} for braces")
        elif part.startswith("{") and len(part) > 1:
            name = part[1:-1]
            if _MEANT.search(name):
                raise ConfigError(
                    f"{setting} has {part if len(part) < 60 else part[:60] + '...'}, which is no name of a field",
                    "write the name alone, as {text}, and {{ and }} where braces are meant",
                )
            pieces += [Piece(literal, False), Piece(name, True)]
            literal = ""
        else:
            literal += part
    return [piece for piece in [*pieces, Piece(literal, False)] if piece.text or piece.is_field]
