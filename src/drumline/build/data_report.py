"""The report on the data before training: what to look at in each task's rows, once a run and in one process."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drumline.build.language import preference_tokens
from drumline.build.rows import Loaded
from drumline.config.schema import RunConfig
from drumline.data.cache import TokenFile
from drumline.data.document_packing import PackedTexts
from drumline.data.features import Prepared, text_of
from drumline.data.image_folders import ImageRows
from drumline.data.labels import Classes, as_label, as_list
from drumline.data.length_order import ByLength
from drumline.data.mixture import Mixture
from drumline.data.packing import PackedRows
from drumline.data.schema import Schema
from drumline.data.survey import (
    Content,
    Lengths,
    Measure,
    Read,
    Survey,
    lengths_in,
    look_through,
    measure,
    text_in,
)
from drumline.data.survey_documents import look_through_documents
from drumline.data.survey_report import DataReport, Split
from drumline.data.token_row_cache import TokenRows
from drumline.errors import DataError

logger = logging.getLogger("drumline.build")

_TEXTS = {
    "token_classification": ("tokens",),
    "sequence_to_sequence": ("source", "target"),
    "contrastive": ("anchor", "positive"),
}
"""Columns that a task reads its texts from; those whose rows have a form say it, others read text and text_pair."""
_BESIDE = ("system", "input")
"""Columns that rows with a form may have as well."""
_LABELS = {"classification": ("label", False), "multi_label": ("label", True), "token_classification": ("tags", True)}
"""The column of a task's labels, and whether a row has a list of them."""
_UNCUT = 2**31


def data_report(config: RunConfig, loaded: Loaded, train: Any, evaluation: Any | None) -> DataReport | None:
    """Look through the rows; train and evaluation are the same rows as the task reads them.

    Of text files it is about documents. None where data.check is off, and for kinds of data that have neither.
    """
    began = time.monotonic()
    if loaded.reads == "packed":
        first = _documents(loaded.train)
        # Held-out rows that are a share of the training files are of the same documents.
        second = _documents(loaded.evaluation) if getattr(config.data, "eval", ()) else None
        if first is None:
            return None
    elif getattr(config.data, "check", True):
        first = _split(config, loaded, loaded.train, train)
        second = None if loaded.evaluation is None else _split(config, loaded, loaded.evaluation, evaluation)
    else:
        return None
    return DataReport.of(first, second, time.monotonic() - began)


def tell_report(report: DataReport) -> None:
    """Log the table, and warn of what should be seen to."""
    for line in report.table():
        logger.info("%s", line)
    for warning in report.warnings():
        logger.warning("%s", warning)


def token_rows_in(rows: Any) -> list[TokenRows] | None:
    """The tokens on disk that rows are made of, packed, by length or as they are; None where they are not on disk."""
    if isinstance(rows, ByLength):
        return token_rows_in(rows.rows)
    if isinstance(rows, Mixture):
        parts = [token_rows_in(part) for part in rows.parts]
        return None if None in parts else [each for part in parts for each in part or ()]
    if isinstance(rows, PackedTexts):
        rows = rows.texts
    return [rows] if isinstance(rows, TokenRows) else None


def _documents(rows: Any) -> Split | None:
    """The whole files, of which with data.eval_fraction some rows are held out."""
    parts = [getattr(part, "whole", part) for part in getattr(rows, "parts", (rows,))]
    tokens = [part.tokens for part in parts if isinstance(part, PackedRows)]
    files = [each for each in tokens if isinstance(each, TokenFile)]
    if not files:
        return None
    found = look_through_documents(files)
    return Split.of(Schema({}, found.num_rows), found)


def _split(config: RunConfig, loaded: Loaded, records: Any, rows: Any) -> Split:
    schema = records.schema
    label, _ = _LABELS.get(config.task.kind, ("", False))
    if loaded.reads == "image" and label and hasattr(records, "only"):
        records = records.only(label)
    elif schema.num_rows is None or _is_costly(loaded, records):
        return Split.of(schema, None)
    found = look_through(records, _reader(config, _columns(config, loaded), loaded.classes))
    found.lengths = _lengths(config, loaded, records, rows, found)
    return Split.of(schema, found)


def _is_costly(loaded: Loaded, records: Any) -> bool:
    """Whether reading a row opens an image: those of folders are only named."""
    parts = getattr(records, "parts", (records,))
    return loaded.reads == "image" and not all(isinstance(part, ImageRows) for part in parts)


def _columns(config: RunConfig, loaded: Loaded) -> tuple[str, ...]:
    """The columns whose content makes two rows the same."""
    there = tuple(loaded.train.schema.columns)
    if loaded.reads == "image":
        return ()
    if loaded.reads in ("numbers", "columns"):
        return loaded.facts.columns
    if loaded.form is not None:
        return tuple(dict.fromkeys((*loaded.form.columns, *(name for name in _BESIDE if name in there))))
    return tuple(name for name in _TEXTS.get(config.task.kind, ("text", "text_pair")) if name in there)


def _reader(config: RunConfig, columns: tuple[str, ...], classes: Classes | None) -> Read:
    column, many = _LABELS.get(config.task.kind, ("", False))

    def name_of(value: Any) -> str:
        if classes is None or not classes.has(value):
            return str(as_label(value))
        return classes.names[classes.number_of(value)]

    def labels_of(record: Mapping[str, Any]) -> tuple[str, ...]:
        try:
            values = as_list(record[column]) if many else [record[column]]
            return tuple(name_of(value) for value in values)
        except (KeyError, DataError):  # what the task says of such a row is told where it reads it
            return ()

    def read(record: Mapping[str, Any]) -> Content:
        return Content(text_in(record, columns) if columns else None, labels_of(record) if column else ())

    return read


def _lengths(config: RunConfig, loaded: Loaded, records: Any, rows: Any, found: Survey) -> Lengths | None:
    context = loaded.facts.context
    if context is None or loaded.tokenizer is None:
        return None
    if (known := token_rows_in(rows)) is not None:
        return _on_disk(known, context, found)
    if (lengths_of := _measure(config, loaded)) is not None:
        return measure(records, lengths_of, found, context)
    return measure(rows, _made, found, context) if isinstance(rows, Prepared) else None


def _on_disk(known: Sequence[TokenRows], context: int, found: Survey) -> Lengths | None:
    """What the cache of tokens knows of all rows; the lengths are those after the cut."""
    counts = [rows.counts for rows in known]
    found.num_unreadable = sum(each.num_bad for each in counts)
    kept = lengths_in(np.concatenate([rows.lengths for rows in known]), context)
    if kept is None:
        return None
    num_cut, num_lost = sum(each.num_cut for each in counts), sum(each.num_cut_tokens for each in counts)
    learned = sum(each.num_learned for each in counts) / max(1, kept.total)
    return replace(kept, num_cut=num_cut, num_lost=num_lost, learned=learned, before_cut=False)


def _made(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens of each text of a row that the task has made already."""
    own = (len(row["input_ids"]),) if "input_ids" in row else ()
    return own + tuple(length for part in row.values() if isinstance(part, Mapping) for length in _made(part))


def _measure(config: RunConfig, loaded: Loaded) -> Measure | None:
    """How many tokens a row's texts have before they are cut; None for tasks whose features say that themselves."""
    tokenizer, task = loaded.tokenizer, config.task.kind
    assert tokenizer is not None
    pair = "text_pair" in loaded.facts.columns
    if task == "token_classification":
        return lambda record: (
            len(tokenizer.encode_words([str(word) for word in as_list(record["tokens"])], _UNCUT)[0]),
        )
    if task in ("sequence_to_sequence", "contrastive"):
        roles = _TEXTS[task]
        return lambda record: tuple(
            len(tokenizer.encode_row(text_of(record, role), None, _UNCUT).ids) for role in roles
        )
    if task == "preference":
        return preference_tokens(loaded).lengths
    if loaded.form is not None:
        return None

    def lengths_of(record: Mapping[str, Any]) -> tuple[int, ...]:
        second = text_of(record, "text_pair") if pair else None
        return (len(tokenizer.encode_row(text_of(record, "text"), second, _UNCUT).ids),)

    return lengths_of
