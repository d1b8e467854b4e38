"""What the rows of language modelling and of preferences are, and the chat template that they are written with."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from drumline.config.data import RecordData
from drumline.config.schema import RunConfig
from drumline.data.chat import chat_of
from drumline.data.files import expand_files
from drumline.data.jinja_templates import own_template
from drumline.data.learned_tokens import turns_of_both, with_prompt
from drumline.data.mixture import sources_of
from drumline.data.record_files import read_rows
from drumline.data.row_formats import FIRST_ROWS, Format, Record, RowFormat, detect_format
from drumline.data.schema import renamed
from drumline.data.templates import Template, load_template
from drumline.data.tokenizers import Tokenizer
from drumline.errors import DataError

logger = logging.getLogger("drumline.build")

WRITTEN = ("language_modelling", "preference")
"""Tasks whose rows have one of several formats."""
_MOST_BAD = 1000
"""Rows that are gone through for one that can be read."""


def form_in_files(config: RunConfig, data: RecordData) -> RowFormat:
    """The format of rows in files, by the first rows of each source, before they are read into a cache.

    Raises DataError where none fits, or several do.
    """
    rows: list[Record] = []
    for source in sources_of(data.train, "data.train"):
        rows += _first_in(expand_files(source.paths, source.setting, "*.jsonl")[0])
    rows = [renamed(row, data.columns) for row in rows]
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    if not names:  # reading all rows will tell what is wrong with them
        return RowFormat("text", "no row can be read", ("text",))
    return detect_format(names, rows, asked_format(config))


def form_of_rows(config: RunConfig, rows: Any) -> RowFormat:
    """The format of rows that are open already; of a stream by its columns and its first rows."""
    columns = [name for name, column in rows.schema.columns.items() if set(column.types) - {"null"}]
    first = list(islice(_rows(rows), FIRST_ROWS))
    return detect_format(columns, first, asked_format(config))


def asked_format(config: RunConfig) -> Any:
    """The format that the settings ask for; preferences have but one."""
    wanted: Format | Any = (
        "preference" if config.task.kind == "preference" else getattr(config.data, "row_format", "auto")
    )
    return wanted


def template_for(config: RunConfig, tokenizer: Tokenizer, form: RowFormat) -> Template | None:
    """The chat template that rows of this format are written with; None where they stand as they are.

    Messages need one. Plain prompts and completions become a chat where data.template says so; an instruction also
    where the tokenizer has a template. Raises ConfigError where there is none and one is needed.
    """
    data: Any = config.data
    if form.kind == "text":
        return None
    folder: Path | None = getattr(tokenizer, "folder", None)
    owned = form.has_instruction and folder is not None and own_template(folder) is not None
    if not (form.has_messages or form.kind == "chat" or data.template is not None or owned):
        return None
    return load_template(data.template, tokenizer, data.learn)


def prove(template: Template, form: RowFormat, rows: Any) -> None:
    """Raise ConfigError unless the learned tokens of the first rows, decoded, are the words that are to be learned.

    Rows that cannot be read are passed over: they are counted when all are read. Warns of a template that writes
    nothing after the last answer.
    """
    if not template.ends_answers:
        logger.warning("data.template: %s ends no answer: the model will not learn where to stop", template.where)
    for record in islice(_rows(rows), FIRST_ROWS):
        with suppress(DataError):
            if form.kind == "chat":
                template.check(*chat_of(record))
            elif form.kind == "prompt_completion":
                asked = with_prompt(record, form, templated=True)
                turns = turns_of_both(asked, asked.get("prompt"), "completion")
                template.check(turns.messages, turns.tools, first=turns.first)


def _rows(rows: Any) -> Iterator[Record]:
    if rows.schema.num_rows is None:
        return iter(rows)
    return (rows[place] for place in range(len(rows)))


def _first_in(file: Path) -> list[Record]:
    found = (row for _, row in islice(read_rows(file, {}), _MOST_BAD) if isinstance(row, dict))
    return list(islice(found, FIRST_ROWS))
