"""The settings of a job that predicts: an InferenceConfig without what the service says, every path looked up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from drumline.config.inference import ChooseTask, InferenceConfig
from drumline.config.load import validated
from drumline.config.recipes import recipes_folder
from drumline.config.service import ServiceConfig
from drumline.config.source import from_mapping
from drumline.errors import ConfigError, TooLarge
from drumline.jobs.intake_fields import Fields, Rules
from drumline.jobs.intake_paths import Places
from drumline.jobs.intake_settings import SOURCE, Walk, bounded, paths_in
from drumline.jobs.requests import JobRequest
from drumline.rundir import read_json

RULES = Rules(
    MappingProxyType(
        {
            "model.path": "ours",
            "model.revision": "plain",
            "model.cache_dir": "ours",
            "model.token_variable": "never",
            "rows.files": "ours",
            "rows.id": "plain",
            "rows.text": "plain",
            "rows.text_pair": "plain",
            "rows.label": "plain",
            "rows.image_roots": "ours",
            "task.prompt.strategy": "template",
            "task.prompt.prompt": "plain",
            "task.prompt.system": "plain",
            "task.prompt.messages": "plain",
            "task.prompt.template": "template",
            "task.stop": "plain",
            "task.labels": "plain",
            "split.device_map": "plain",
            "output.file": "ours",
            "output.prefix": "plain",
            "run_dir": "ours",
            "hardware.gpus": "ours",
            "hardware.exclude": "ours",
        }
    ),
    frozenset(
        {"model.path", "model.cache_dir", "rows.files", "rows.image_roots", "output.file", "run_dir"}
        | {"hardware.gpus", "hardware.exclude"}
        | {f"hardware.{name}" for name in ("count", "num_processes", "device", "sick", "taken")}
    ),
    MappingProxyType(
        {
            "batching.window": 1_000_000,
            "batching.rows": 65_536,
            "batching.tokens": 2**31,
            "task.max_new_tokens": 1_000_000,
            "max_deaths": 100,
            "max_restarts": 1000,
        }
    ),
)
"""Which field of an InferenceConfig a request may say. What takes free text and does not stand here is refused."""

COLUMNS = ("text", "text_pair", "label", "id")
"""Names in a request's `columns`: fields of RowsConfig."""
MOST_LABELS, MOST_LETTERS = 1000, 200
"""Of a choice: labels, and characters of each."""
_STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "model": {"path": "model"},
    "rows": {"files": ["rows.jsonl"]},
    "output": {"file": "answers.jsonl"},
}
"""What only the service knows, so that the rest can be checked as a whole."""


@cache
def prediction_fields() -> Fields:
    """InferenceConfig's fields."""
    return Fields(InferenceConfig, RULES)


def prediction_settings(request: JobRequest, said: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """Sections of an InferenceConfig, as a request has them. said: its settings, without how many devices it wants.

    Raises ConfigError for names that nobody knows and for what a request may not say.
    """
    bounded(dict(request.task or {}), "task")
    sections = _nested({**said, **_columns(request)})
    if "task" in sections:
        raise ConfigError("settings: what the model is asked stands in task", "send task: {kind: ..., ...} beside them")
    if request.task is not None:
        sections["task"] = dict(request.task)
    # Names and places first: what may not be said is told as such, not as a value that does not fit.
    walk = Walk(places, prediction_fields())
    walk.section(sections, ())
    merged = {name: _with_stand_in(name, sections.get(name)) for name in {**sections, **_STAND_INS}}
    config = validated(from_mapping(merged, SOURCE), InferenceConfig)
    if isinstance(config.task, ChooseTask):
        _few_labels(config.task.labels)
    values = config.model_dump(mode="json", exclude_unset=True)
    for name, stand_in in _STAND_INS.items():
        values[name] = {key: value for key, value in values[name].items() if key not in stand_in}
    found = {name: value for name, value in walk.section(values, ()).items() if value != {}}
    return found


def check_images(model: str, request: JobRequest) -> None:
    """Raise ConfigError for texts before a model that takes images: each would name a file of this machine."""
    folder = Path(model)
    if request.texts is None or not folder.is_absolute():
        return
    config: Any = {}
    with suppress(OSError, ValueError):  # the command says what is wrong with it
        config = read_json(folder / "config.json")
    if (folder / "preprocessor_config.json").is_file() or (isinstance(config, dict) and "image_size" in config):
        raise ConfigError(
            "the model takes images, which no texts are", "name a folder with images below files.data_roots as path"
        )


def image_roots(config: ServiceConfig) -> list[str]:
    """The folders below which images may lie that rows of a file name: those of data, without links."""
    roots = [*config.files.data_roots, config.data_dir / "data", recipes_folder()]
    return [os.path.realpath(Path(root).expanduser()) for root in roots]


def prediction_paths(settings: Mapping[str, Any]) -> Iterator[str]:
    """The absolute paths that accepted settings name."""
    return paths_in(settings, treatments=RULES.treatments)


def _few_labels(labels: Sequence[str]) -> None:
    """Raise TooLarge for more labels, or longer ones, than a choice has: each is computed for each row."""
    if len(labels) > MOST_LABELS or any(len(label) > MOST_LETTERS for label in labels):
        raise TooLarge(
            "task.labels has too much in it", f"at most {MOST_LABELS:,} labels of {MOST_LETTERS} characters each"
        )


def _columns(request: JobRequest) -> dict[str, str]:
    for name in request.columns:
        if name not in COLUMNS:
            raise ConfigError(
                f"columns has no name {name[:100]!r} for a prediction", f"it takes {', '.join(COLUMNS)}; see RowsConfig"
            )
    return {f"rows.{name}": column for name, column in request.columns.items()}


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted names or in sections, as sections."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *above, last = str(name).split(".")
        section = found
        for part in above:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"settings: {name[:200]} stands below what is no section", "say each setting once")
        if isinstance(value, Mapping) and isinstance(section.get(last), dict):
            section[last] = {**section[last], **value}
        else:
            section[last] = dict(value) if isinstance(value, Mapping) else value
    return found


def _with_stand_in(name: str, section: Any) -> Any:
    """A section with what only the service knows, so that it can be checked as a whole."""
    if isinstance(section, Mapping) or section is None:
        return {**(section or {}), **_STAND_INS.get(name, {})} if name in _STAND_INS else section
    return section
