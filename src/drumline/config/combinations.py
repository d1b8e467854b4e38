"""Which data, task and model go together, as far as a recipe alone tells."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.problem import Problem, listed
from drumline.config.row_rules import row_problems
from drumline.config.schema import RunConfig

_BY_ROW = ("classification", "multi_label", "regression")
_TASKS_OF_DATA = {
    "text": ("language_modelling",),
    "random_tokens": ("language_modelling",),
    "text_folders": ("classification", "regression", "language_modelling"),
    "image_folders": ("classification", "regression"),
}
_GIVES = {
    "text": "running text without labels",
    "random_tokens": "random text without labels",
    "text_folders": "one class a text",
    "image_folders": "one class an image",
}
_TASKS_OF_MODEL = {
    "decoder": ("language_modelling",),
    "cnn": _BY_ROW,
    "ngrams": (*_BY_ROW, "contrastive"),
}
_DATA_OF_MODEL = {"cnn": ("image_folders", "datasets"), "ngrams": ("records", "text_folders", "datasets")}


def combination_problems(config: RunConfig) -> Iterator[Problem]:
    """What of data, task and model cannot go together; nothing is said of a recipe without a data section.

    A model from a Python file may bring its own loss, so that only running it can tell.
    """
    if config.data is None or config.model.kind == "python":
        return
    yield from data_problems(config)
    yield from row_problems(config)
    model, task, data = config.model.kind, config.task.kind, config.data.kind
    if task not in _TASKS_OF_MODEL.get(model, (task,)):
        others = [name for name, tasks in _TASKS_OF_MODEL.items() if task in tasks]
        fix = f"set model.kind to {listed([*others, 'huggingface'])}, or task.kind to {listed(_TASKS_OF_MODEL[model])}"
        yield Problem(None, ("model", "kind"), f"{model} has no output for {task}", fix)
    elif data not in _DATA_OF_MODEL.get(model, (data,)):
        reads = "images" if model == "cnn" else "texts"
        fix = f"set data.kind to {listed(_DATA_OF_MODEL[model])}, or take another model.kind"
        yield Problem(None, ("model", "kind"), f"{model} reads {reads}, which data.kind {data} does not give", fix)


def data_problems(config: RunConfig) -> Iterator[Problem]:
    """A task whose values the kind of data does not have."""
    assert config.data is not None
    task, data = config.task.kind, config.data.kind
    if task not in _TASKS_OF_DATA.get(data, (task,)):
        fix = f"set task.kind to {listed(_TASKS_OF_DATA[data])}, or data.kind to records"
        yield Problem(None, ("task", "kind"), f"{task} needs more than data.kind {data} gives, {_GIVES[data]}", fix)
