"""The settings of a request, gone through by name: what names something outside of the run is looked up or refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from drumline.config.load import config_from_mapping
from drumline.config.problem import Problem, dotted, refuse
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError, TooLarge
from drumline.jobs.finetuning_settings import as_settings
from drumline.jobs.intake_data_sets import check_data_set
from drumline.jobs.intake_fields import TREATMENTS, Fields, Treatment
from drumline.jobs.intake_paths import Places
from drumline.plan.rules import config_problems

MOST_VALUES = 100_000
MOST_DEPTH = 30
MOST_LETTERS = 1_000_000
"""All texts of a request's settings together: they are kept in the job's row."""
LARGEST = 2**53
"""Of a whole number: beyond it not every reader of JSON has the same one."""

LOOKED_UP = frozenset({"data", "model", "weights", "tokenizer", "template"})
"""Treatments of settings whose text may be a path."""

SOURCE = "the request"
CHOSEN = ("model.path", "model.kind", "model.file", "data.kind", "data.train", "data.path")
"""What a fine-tuning has from its model and data."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
DROPPED = object()
"""In the place of a value that the service says."""


def bounded(value: Any, what: str, most_letters: int = MOST_LETTERS) -> None:
    """Raise TooLarge or ConfigError for values that nobody can mean: endless, infinitely deep, not a number."""
    left, letters, pending = MOST_VALUES, most_letters, [(value, 0)]
    while pending:
        each, depth = pending.pop()
        left -= 1
        letters -= len(each) if isinstance(each, str) else 0
        if left < 0 or letters < 0 or depth > MOST_DEPTH:
            raise TooLarge(
                f"{what} has too much in it",
                f"at most {MOST_VALUES:,} values, {MOST_DEPTH} levels and {most_letters:,} letters",
            )
        if isinstance(each, float) and not math.isfinite(each):
            raise ConfigError(f"{what} has a number that is none: {each}", "write a finite one")
        if isinstance(each, int) and abs(each) > LARGEST:
            raise ConfigError(f"{what} has a number beyond 2**53", "write a smaller one")
        if isinstance(each, str) and not is_text(each):
            raise ConfigError(f"{what} has half a character (a lone surrogate)", "send it as UTF-8")
        if isinstance(each, Mapping):
            pending += [(part, depth + 1) for pair in each.items() for part in pair]
        elif isinstance(each, list | tuple):
            pending += [(part, depth + 1) for part in each]


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_settings(config: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """A RunConfig as a request has it, with every path looked up. Raises ConfigError for what a request may not say."""
    bounded(config, "config")
    checked = config_from_mapping(config, SOURCE)
    settings = Walk(places, schema_fields()).section(checked.model_dump(mode="json", exclude_unset=True), ())
    if settings.get("data") is None:
        raise ConfigError("config has no data", "say what it learns from, as data: {kind: records, train: [...]}")
    if settings["data"].get("kind") == "datasets":
        check_data_set(settings["data"]["path"], "data.path")
    refuse_problems(config_problems(config_from_mapping(settings, SOURCE)))
    return settings


def finetuning_settings(settings: Mapping[str, Any], places: Places) -> dict[str, Any]:
    """Settings beside those that are chosen from model and data, by dotted names, with every path looked up.

    Raises ConfigError for names that nobody knows, and for what a request may not say.
    """
    bounded(settings, "settings")
    found: dict[str, Any] = {}
    walk = Walk(places, schema_fields())
    for name, value in as_settings(settings).items():
        # As --set reads it: nothing may stand in a name that would be read as another one with a value.
        if not _NAME.fullmatch(name):
            raise ConfigError(f"settings have no name {name[:200]!r}", "write it as in train.lr")
        if any(each == name or each.startswith(f"{name}.") for each in CHOSEN) and not _is_free(name, value):
            raise ConfigError(f"{name} follows from model_name and the data", "leave it out, or send kind: train")
        new = walk.value(value, tuple(name.split(".")))
        if new is not DROPPED:
            found[name] = new
    _validate(found)
    return found


def paths_in(settings: Any, name: str = "", treatments: Mapping[str, Treatment] = TREATMENTS) -> Iterator[str]:
    """The absolute paths that accepted settings name, dotted or in sections. name: of a part, where one is given."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from paths_in(value, f"{name}.{key}" if name else str(key), treatments)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from paths_in(value, name, treatments)
    elif isinstance(settings, str) and settings.startswith("/") and treatments.get(name) in LOOKED_UP:
        yield settings


def _is_free(name: str, value: Any) -> bool:
    """Whether a section that is given whole leaves alone what is chosen."""
    if not isinstance(value, Mapping):
        return False
    chosen = [each.removeprefix(f"{name}.") for each in CHOSEN if each.startswith(f"{name}.")]
    return not any(each in value for each in chosen)


def _validate(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for values that the schema does not take, and for those that contradict each other."""
    train = {"epochs": 1} | ({} if "train.batch_size_per_gpu" in settings else {"global_batch": 8})
    stand_in = {
        "model": {"kind": "huggingface", "path": "model"},
        "data": {"kind": "records", "train": ["rows.jsonl"]},
        "train": train,
    }
    overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    config = config_from_mapping(stand_in, SOURCE, overrides)
    refuse_problems([problem for problem in config_problems(config) if dotted(problem.key).startswith("train.")])


def refuse_problems(problems: list[Problem]) -> None:
    """Raise ConfigError that lists problems, where there are any."""
    if problems:
        raise refuse(problems)


@cache
def schema_fields() -> Fields:
    """RunConfig's fields."""
    return Fields(RunConfig)


class Walk:
    """Goes through plain values along a schema and gives them back as a run shall have them."""

    def __init__(self, places: Places, fields: Fields) -> None:
        self._fields = fields
        self._places = places

    def section(self, values: Mapping[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
        """A section without what the service says itself."""
        found = {str(name): self.value(value, (*key, str(name))) for name, value in values.items()}
        return {name: value for name, value in found.items() if value is not DROPPED}

    def value(self, value: Any, key: tuple[str, ...]) -> Any:
        """What stands under a dotted name; DROPPED where the service says it."""
        name = ".".join(key)
        if name not in self._fields.known:
            raise ConfigError(f"there is no setting {name[:200]}", "see docs/config.md for all names")
        self._limits(name, value)
        treatment = self._fields.treatment(name)
        if name in self._fields.rules.ours or treatment in ("ours", "never"):
            if any(_same(value, default) for default in self._fields.defaults.get(name, [])):
                return DROPPED
            why = (
                "the service chooses it"
                if name in self._fields.rules.ours
                else "no request may say it: it names what is outside of it"
            )
            fix = "see resources for how many devices a job gets" if name.startswith("hardware.") else "leave it out"
            raise ConfigError(f"{name}: {why}", fix)
        if treatment == "plain":
            return value
        if isinstance(value, Mapping):
            return self.section(value, key)
        if isinstance(value, list):
            return [self._entry(each, key) for each in value]
        return self._entry(value, key)

    def _entry(self, value: Any, key: tuple[str, ...]) -> Any:
        name = ".".join(key)
        if isinstance(value, Mapping):
            return self.section(value, key)
        if not isinstance(value, str):
            return value
        match self._fields.treatment(name):
            case "data":
                return self._places.data(value, name)
            case "model":
                return self._places.model(value, name)
            case "weights":
                return self._places.weights(value, name)
            case "tokenizer":
                return self._places.tokenizer(value, name)
            case "template":
                return self._places.template(value, name)
        return value

    def _limits(self, name: str, value: Any) -> None:
        """Raise ConfigError for values by which a run would harm its machine, or could not be stopped."""
        if name == "model.kind" and value == "python":
            raise ConfigError("model.kind python runs a file, which no request may", "take another kind of model")
        if name == "model.trust_remote_code" and value is not False:
            raise ConfigError(
                "model.trust_remote_code runs code that comes with a model, which no request may", "leave it out"
            )
        if name == "checkpoint.resume" and value is not True:
            raise ConfigError("checkpoint.resume: a job goes on where it was stopped", "leave it out")
        if name == "train.max_time_s" and value is not None:
            raise ConfigError("train.max_time_s ends a run, and a job would begin it again", "say time_limit_s instead")
        if name == "faults.stop_signals" and not (isinstance(value, list) and "SIGTERM" in value):
            raise ConfigError("faults.stop_signals has no SIGTERM, by which jobs are stopped", "leave it out")
        most = self._fields.rules.most.get(name)
        if most is not None and isinstance(value, int | float) and value > most:
            raise ConfigError(f"{name} is {value}, and {most:g} is the most", "write a smaller number")


def _same(value: Any, default: Any) -> bool:
    return bool(value == default) or (value is not None and default is not None and str(value) == str(default))
