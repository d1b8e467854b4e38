"""The data section as rows, and what they say of the model: classes, ids, sizes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from drumline.build.row_form import WRITTEN, form_in_files, form_of_rows, prove, template_for
from drumline.config.combinations import data_problems
from drumline.config.data import Data, HuggingFaceData, ImageFolders, RandomTokens, RecordData, TextData, TextFolders
from drumline.config.model import HuggingFaceModel
from drumline.config.problem import refuse
from drumline.config.schema import RunConfig
from drumline.data.held_out import with_held_out
from drumline.data.hub import Hub
from drumline.data.hugging_face import load_datasets
from drumline.data.image_folders import load_image_folders
from drumline.data.labels import Classes, as_numbers, column, find_classes
from drumline.data.random_tokens import RandomTokenRows
from drumline.data.records import RecordSplits, load_records
from drumline.data.row_formats import RowFormat
from drumline.data.schema import Schema
from drumline.data.templates import Template
from drumline.data.text import load_text
from drumline.data.text_folders import load_text_folders
from drumline.data.tokenizers import Tokenizer, load_tokenizer
from drumline.errors import ConfigError, DataError
from drumline.models.hub import hub_of
from drumline.models.python_file import DataFacts

Reads = Literal["packed", "text", "image", "numbers", "columns"]
"""What rows become tensors from; packed: they are tensors already. columns: each by itself, for a loss of one's own."""

_LABELS = {"classification": "label", "multi_label": "label", "regression": "label", "token_classification": "tags"}
_TEXTS = {
    "token_classification": ("tokens",),
    "sequence_to_sequence": ("source", "target"),
    "contrastive": ("anchor", "positive"),
}
_NUMBERS = frozenset({"whole number", "number", "null"})


@dataclass(frozen=True)
class Loaded:
    """What the data section comes to before there is a model."""

    train: Any
    evaluation: Any | None
    reads: Reads
    facts: DataFacts
    tokenizer: Tokenizer | None = None
    classes: Classes | None = None
    form: RowFormat | None = None
    """What a row of language modelling or of preferences is, and why; None for other tasks."""
    template: Template | None = None
    """The chat template that such rows are written with."""


def load_rows(config: RunConfig, *, own_loss: bool = False) -> Loaded:
    """Read the data section as far as must be before there is a model; `own_loss`: a user's file says what is learned.

    Raises ConfigError and DataError for data that cannot be read, or does not have what the task needs.
    """
    data = config.data
    if data is None:
        raise ConfigError("the recipe has no data section", "add data: {kind: text, train: [...]}")
    if not own_loss and (problems := list(data_problems(config))):
        raise refuse(problems)
    if isinstance(data, RandomTokens):
        train = RandomTokenRows(data.num_rows, data.context, data.vocab_size, config.seed)
        held_out = RandomTokenRows(data.num_eval_rows, data.context, data.vocab_size, config.seed + 1)
        facts = DataFacts(vocab_size=data.vocab_size, context=data.context)
        return Loaded(train, held_out if data.num_eval_rows else None, "packed", facts)
    if isinstance(data, TextData):
        tokenizer = load_tokenizer(tokenizer_name(config), tokenizer_hub(config))
        splits = load_text(data, build=one_at_a_time(data.cache_dir), tokenizer=tokenizer)
        facts = DataFacts(vocab_size=splits.tokenizer.vocab_size, context=data.context)
        return Loaded(*with_held_out(data, splits.train, splits.eval), "packed", facts, splits.tokenizer)
    # With a loss of its own a file may leave the task as it is, and then rows are handed over as they are.
    free = own_loss and config.task.kind == "language_modelling" and not isinstance(data, TextFolders | ImageFolders)
    written = config.task.kind in WRITTEN and not free
    form = form_in_files(config, data) if written and isinstance(data, RecordData) else None
    records = read_records(config, data, free, form)
    if written and form is None:
        form = form_of_rows(config, records.train)
    divided = with_held_out(data, records.train, records.eval, read_columns(config, records.schema, free, form))
    records = RecordSplits(*divided, records.schema)
    reads = what_to_read(config, data, records.schema, free, form)
    return with_labels(config, records, reads, form)


def one_at_a_time(cache_dir: Path) -> Callable[[Callable[[], None]], None]:
    """Run what writes a cache under a file lock: the first rank on a machine does it, the others find it done.

    No collective waits, so no time-out can strike; a rank that dies gives the lock back; bad data raises on each rank.
    """

    def build(write: Callable[[], None]) -> None:
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            lock = (cache_dir / "lock").open("w")
        except OSError as error:
            raise DataError(f"data.cache_dir {cache_dir} cannot be written: {error}", "choose another") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write()

    return build


def read_records(config: RunConfig, data: Data, free: bool, form: RowFormat | None) -> RecordSplits:
    """The records of any kind of data that has them; `free`: whatever they hold."""
    if isinstance(data, ImageFolders):
        return load_image_folders(data)
    if isinstance(data, TextFolders):
        return load_text_folders(data)
    if isinstance(data, HuggingFaceData):
        return load_datasets(data)
    assert isinstance(data, RecordData)
    # A model of one's own may read columns of numbers instead.
    text = config.model.kind != "python" or config.task.kind not in _LABELS
    needed = [] if free else required(config, form, text=text)
    return load_records(data, needed, build=one_at_a_time(data.cache_dir))


def required(config: RunConfig, form: RowFormat | None, *, text: bool) -> list[str]:
    """The values that each record must have for the task; text: whether one of them is, where it is one a row."""
    if form is not None:
        return list(form.columns)
    task = config.task.kind
    texts = _TEXTS.get(task, ("text",) if text else ())
    mapped = getattr(config.data, "columns", {})
    pair = ["text_pair"] if "text_pair" in mapped and texts == ("text",) else []
    return [*texts, *pair, *([_LABELS[task]] if task in _LABELS else [])]


def read_columns(config: RunConfig, schema: Schema, free: bool, form: RowFormat | None) -> tuple[str, ...]:
    """The columns that the task reads, without its label: by them two rows are the same. (): all that there are."""
    if free:
        return ()
    names = required(config, form, text="text" in schema.columns)
    if form is not None and form.kind != "text":
        names += ["system", "input", "tools"]
    elif form is None and "text" in names:
        names.append("text_pair")
    label = _LABELS.get(config.task.kind)
    return tuple(name for name in dict.fromkeys(names) if name != label and name in schema.columns)


def what_to_read(config: RunConfig, data: Data, schema: Schema, free: bool, form: RowFormat | None) -> Reads:
    """Image, text or numbers, by the columns that there are. Raises DataError where none of them serves."""
    if free:
        return "columns"
    if isinstance(data, ImageFolders):
        return "image"
    if config.task.kind in ("classification", "multi_label", "regression") and "text" not in schema.columns:
        if "image" in schema.columns:
            return "image"
        if config.model.kind == "python" and number_columns(schema):
            return "numbers"
    schema.require(required(config, form, text=True), "data.train")
    return "text"


def number_columns(schema: Schema) -> tuple[str, ...]:
    """Columns other than the label that hold numbers in all rows."""
    return tuple(
        name
        for name, values in schema.columns.items()
        if name != "label" and not set(values.types) - _NUMBERS and not values.num_nulls
    )


def with_labels(config: RunConfig, records: RecordSplits, reads: Reads, form: RowFormat | None) -> Loaded:
    """Find the classes, check those of the held-out rows, and load the tokenizer and the chat template."""
    task, train, held_out = config.task.kind, records.train, records.eval
    classes, num_targets = None, None
    role = _LABELS.get(task) if reads != "columns" else None
    if role is not None and task == "regression":
        num_targets = as_numbers(next(values_of(train, role))).numel() if train.schema.num_rows else 1
    elif role is not None:
        lists = task != "classification"
        classes = classes_of(train, role, lists=lists)
        if held_out is not None:
            check_held_out(held_out, role, classes, lists=lists)
    tokenizer = load_tokenizer(tokenizer_name(config), tokenizer_hub(config)) if reads == "text" else None
    data: Any = config.data
    names = number_columns(train.schema) if reads == "numbers" else tuple(train.schema.columns)
    facts = DataFacts(
        classes=None if classes is None else classes.names,
        num_targets=num_targets,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        context=data.context if reads == "text" else None,
        channels=data.channels if reads == "image" else None,
        size=data.size if reads == "image" else None,
        columns=names,
    )
    template = None
    if form is not None and tokenizer is not None:
        template = template_for(config, tokenizer, form)
        if template is not None:
            prove(template, form, train)
    return Loaded(train, held_out, reads, facts, tokenizer, classes, form, template)


def classes_of(rows: Any, role: str, *, lists: bool) -> Classes:
    """The classes that the data names itself, else those that its rows have."""
    known = rows.schema.columns[role]
    if known.names is not None:
        return Classes(range(len(known.names)), known.names)
    if rows.schema.num_rows is None:
        raise ConfigError(
            f"the classes in column {role!r} of a stream are not known before it is read",
            "set data.streaming to false, or store the column as class numbers with names (datasets.ClassLabel)",
        )
    where = f"data.train, column {role!r}"
    if (values := listed_values(rows, role, lists=lists)) is not None:
        try:
            return find_classes([values] if lists else values, where, lists=lists)
        except DataError:
            pass  # going through the rows finds the one that it comes from
    return find_classes(values_of(rows, role), where, lists=lists)


def check_held_out(rows: Any, role: str, classes: Classes, *, lists: bool) -> None:
    """Raise DataError for a held-out label that training lacks."""
    if rows.schema.num_rows is None or rows.schema.columns[role].names is not None:
        return
    values = listed_values(rows, role, lists=lists)
    if values is not None and all(classes.has(value) for value in values):
        return
    for number, value in enumerate(values_of(rows, role)):
        try:
            _ = classes.numbers_of(value) if lists else classes.number_of(value)
        except DataError as error:
            raise DataError(f"data.eval, row {number}: {error.problem}", error.fix) from None


def listed_values(rows: Any, role: str, *, lists: bool) -> list[Any] | None:
    """The different labels, where the schema has them, so that the rows need not be gone through."""
    known = rows.schema.columns[role]
    whole = not known.num_nulls and (not lists or set(known.types) == {"list"})
    return rows.schema.distinct(role) if whole else None


def values_of(rows: Any, role: str) -> Iterator[Any]:
    """One column of all rows; of the package datasets alone, since the others may hold images to decode."""
    return column(rows.only(role) if hasattr(rows, "only") else rows, role)


def tokenizer_name(config: RunConfig) -> str:
    """data.tokenizer; where it is not given a Hugging Face model's own folder, else bytes."""
    given = getattr(config.data, "tokenizer", None)
    if given is not None:
        return str(given)
    return config.model.path if isinstance(config.model, HuggingFaceModel) else "byte"


def tokenizer_hub(config: RunConfig) -> Hub:
    """How to get at the tokenizer on the hub: as at the model, and of its revision where both are one repository."""
    model = config.model
    if not isinstance(model, HuggingFaceModel):
        return Hub()
    return hub_of(model) if tokenizer_name(config) == model.path else replace(hub_of(model), revision=None)
