"""Which settings of rows that are read by name contradict each other, the task or the model."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.data import HuggingFaceData, RecordData, TextColumns, TextFolders
from drumline.config.model import HuggingFaceModel
from drumline.config.problem import Problem
from drumline.config.schema import RunConfig

_WRITES = ("language_modelling", "preference")
"""Tasks whose rows may be chats."""


def row_problems(config: RunConfig) -> Iterator[Problem]:
    """List them."""
    data, task = config.data, config.task.kind
    if not isinstance(data, TextColumns):
        return
    if task not in _WRITES:
        for key in ("row_format", "template", "learn", "packing"):
            value = getattr(data, key)
            if value != type(data).model_fields[key].default:
                shown = str(value).lower() if isinstance(value, bool) else value
                what = f"{shown} is for rows that a model learns to write, and task.kind is {task}"
                yield _problem(key, what, "leave it out, or set task.kind to language_modelling")
        if data.group_by_length and not isinstance(data, RecordData):
            what = f"true, and how long the rows of data.kind {data.kind} are is not known beforehand"
            yield _problem("group_by_length", what, "leave it out, or set data.kind to records")
        return
    yield from _format(data, task)
    yield from _packing(config, data, task)


def _format(data: TextColumns, task: str) -> Iterator[Problem]:
    asked = data.row_format
    if task == "preference" and asked not in ("auto", "preference"):
        what = f"{asked}, and task.kind preference learns from pairs of answers"
        yield _problem("row_format", what, "leave it out, or set task.kind to language_modelling")
    if task == "language_modelling" and asked == "preference":
        what = "preference, and task.kind language_modelling does not learn from pairs of answers"
        yield _problem("row_format", what, "set task.kind to preference")
    if isinstance(data, TextFolders) and asked not in ("auto", "text"):
        yield _problem("row_format", f"{asked}, and data.kind text_folders has plain texts", "leave it out")
    if data.template is not None and asked == "text":
        what = f"{data.template}, and data.row_format is text: plain texts are written without a template"
        yield _problem("template", what, "leave it out, or set data.row_format to auto")


def _packing(config: RunConfig, data: TextColumns, task: str) -> Iterator[Problem]:
    if data.packing != "packed":
        return
    if task != "language_modelling":
        what = f"packed is for language_modelling, and task.kind is {task}"
        yield _problem("packing", what, "leave it out")
    elif not isinstance(config.model, HuggingFaceModel):
        what = f"packed, and a model of kind {config.model.kind} would mix the texts of a row"
        yield _problem("packing", what, "leave it out, or set model.kind to huggingface")
    elif isinstance(data, HuggingFaceData) and data.streaming:
        what = "packed, and of rows that come one after the other the lengths are not known beforehand"
        yield _problem("packing", what, "leave it out, or set data.streaming to false")


def _problem(key: str, what: str, fix: str) -> Problem:
    return Problem(None, ("data", key), what, fix)
