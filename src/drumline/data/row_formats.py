"""What a row of language modelling is: told from its columns, with the reason, and brought to one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from drumline.data.chat import is_messages
from drumline.data.schema import shown_name
from drumline.errors import DataError

Format = Literal["text", "chat", "prompt_completion", "preference"]
Record = Mapping[str, Any]

FIRST_ROWS = 20
"""Rows that are looked at."""
_SHOWN = 20
"""Columns that an error names."""


class RowFormat(NamedTuple):
    """A format, why it was taken, and the columns that each row must have for it."""

    kind: Format
    reason: str
    columns: tuple[str, ...]
    has_messages: bool = False
    """Whether its texts are lists of messages, and not plain."""
    has_instruction: bool = False
    """Whether the prompt is in columns instruction and, where a row has it, input, as of Alpaca."""


class _Form(NamedTuple):
    kind: Format
    columns: tuple[str, ...]
    what: str
    messages: bool | None
    """Whether the columns must hold messages; None: they may."""


_FORMS = (
    _Form("preference", ("prompt", "chosen", "rejected"), "a prompt with two answers", None),
    _Form("preference", ("chosen", "rejected"), "two chats that begin alike", True),
    _Form("chat", ("messages",), "messages with roles", True),
    _Form("chat", ("conversations",), "messages as ShareGPT writes them, from and value", True),
    _Form("prompt_completion", ("prompt", "completion"), "a prompt and its completion", None),
    _Form("prompt_completion", ("instruction", "output"), "an instruction and its output, as of Alpaca", False),
    _Form("text", ("text",), "plain texts", False),
)


def detect_format(
    columns: Iterable[str],
    rows: Sequence[Record],
    asked: Format | Literal["auto"] = "auto",
    where: str = "data.train",
) -> RowFormat:
    """The format of rows with these columns, of which `rows` are the first; `asked`: the one that the settings say.

    Raises DataError, which names the columns, where none fits or several do.
    """
    names = list(columns)
    fitting = [form for form in _FORMS if asked in ("auto", form.kind) and _fits(form, names, rows)]
    kinds = list(dict.fromkeys(form.kind for form in fitting))
    # Chosen and rejected answers are never there by chance, and such rows often carry the chat as well.
    if not kinds or (len(kinds) > 1 and kinds[0] != "preference"):
        raise _unclear(names, fitting, asked, where)
    form = fitting[0]
    has_messages = form.kind != "text" and any(is_messages(row.get(name)) for row in rows for name in form.columns)
    said = "" if asked in ("auto", "preference") else f"data.row_format asks for {asked}: "
    extra = [name for name in _extras(form) if name in names]
    more = f", with {' and '.join(extra)}" if extra else ""
    reason = f"{said}the rows have {' and '.join(form.columns)}{more}: {form.what}"
    reason += " as messages" if has_messages and form.messages is None else ""
    return RowFormat(form.kind, reason, form.columns, has_messages, form.columns == ("instruction", "output"))


def _fits(form: _Form, names: Sequence[str], rows: Sequence[Record]) -> bool:
    if any(name not in names for name in form.columns):
        return False
    values = [row.get(name) for row in rows for name in form.columns if row.get(name) is not None]
    if form.messages and rows and not values:  # nothing shows that they are messages
        return False
    return form.messages is None or not values or any(is_messages(value) for value in values) == form.messages


def _extras(form: _Form) -> tuple[str, ...]:
    if form.kind == "chat":
        return ("system", "tools")
    return ("input",) if form.columns[0] == "instruction" else ()


def _unclear(names: Sequence[str], fitting: Sequence[_Form], asked: str, where: str) -> DataError:
    shown = ", ".join(repr(shown_name(name)) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    if fitting:
        found = "; or ".join(f"{form.kind} ({' and '.join(form.columns)}: {form.what})" for form in fitting)
        return DataError(
            f"{where}: the columns {shown} may be meant in several ways: {found}",
            f"say which: --set data.row_format={fitting[0].kind}",
        )
    forms = [form for form in _FORMS if asked in ("auto", form.kind)]
    unfit = next((form for form in forms if form.messages is not None and set(form.columns) <= set(names)), None)
    if unfit is not None:
        wanted = "lists of messages with roles" if unfit.messages else "plain texts"
        return DataError(
            f"{where}: {' and '.join(unfit.columns)} should hold {wanted}, and in the first rows they do not",
            f"correct the rows, or say what they are: --set data.row_format={'text' if unfit.messages else 'chat'}",
        )
    known = "; ".join(f"{' and '.join(form.columns)} ({form.what})" for form in forms)
    wanted = forms[-1].columns[-1]
    near = shown_name(names[0]) if names else "COLUMN"
    return DataError(
        f"{where}: the columns are {shown}, and no row format that is known has those: {known}",
        f"say which of yours is which: --set data.columns.{wanted}={near}, for instance",
    )


def instruction_prompt(record: Record) -> str:
    """The prompt of a row as of Alpaca: the instruction, and what it is about in a paragraph of its own."""
    parts = [record.get("instruction"), record.get("input")]
    return "\n\n".join(part for part in parts if isinstance(part, str) and part)
