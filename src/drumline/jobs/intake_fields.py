"""The settings of a run that name something outside of it, and what a request may say there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drumline.config.fields import entry_sections, field_leaves, sections_of
from drumline.config.schema import RunConfig

Treatment = Literal["plain", "data", "model", "weights", "tokenizer", "template", "ours", "never"]
"""plain: a word that names nothing outside the run; data, …: see intake_paths.Places; ours: the service chooses it;
never: no request says it."""

TREATMENTS: Mapping[str, Treatment] = MappingProxyType(
    {
        "name": "plain",
        "run_dir": "ours",
        "model.path": "model",
        "model.revision": "plain",
        "model.cache_dir": "ours",
        "model.token_variable": "never",
        "model.file": "never",
        "model.adapter.targets": "plain",
        "model.adapter.train_also": "plain",
        "model.adapter.initial": "weights",
        "data.train": "data",
        "data.train.paths": "data",
        "data.eval": "data",
        "data.path": "data",
        "data.tokenizer": "tokenizer",
        "data.cache_dir": "ours",
        "data.columns": "plain",
        "data.template": "template",
        "data.subset": "plain",
        "data.train_split": "plain",
        "data.eval_split": "plain",
        "train.optimizer.rules.pattern": "plain",
        "train.schedule.scheduler": "plain",
        "train.schedule.options": "plain",
        "train.schedule.metric": "plain",
        "train.linear.skip": "plain",
        "evaluate.early_stopping.metric": "plain",
        "checkpoint.metric": "plain",
        "checkpoint.initial": "weights",
        "hardware.gpus": "ours",
        "hardware.exclude": "ours",
        "monitor.alerts.rules.name": "plain",
        "monitor.alerts.webhook_env": "never",
        "monitor.alerts.email.host": "never",
        "monitor.alerts.email.username": "never",
        "monitor.alerts.email.password_env": "never",
        "monitor.alerts.email.sender": "never",
        "monitor.alerts.email.recipients": "never",
        "monitor.alerts.file": "never",
    }
)
"""By dotted name. A field that takes any text and does not stand here is refused: it may name a file or a command."""

OURS = frozenset(
    {"hardware.count", "hardware.num_processes", "hardware.device", "hardware.sick", "hardware.taken"}
    | {name for name, treatment in TREATMENTS.items() if treatment == "ours"}
)
"""Settings that the service chooses: where a run lies, and on what it runs."""

MOST: Mapping[str, float] = MappingProxyType(
    {"loader.num_workers": 64, "loader.prefetch_factor": 1024, "parallel.replicas": 1024}
)
"""Above these a machine suffers, and no run gains."""


@dataclass(frozen=True)
class Rules:
    """What is decided about the fields of one schema, by dotted name; without any, every free text is refused."""

    treatments: Mapping[str, Treatment]
    ours: frozenset[str]
    most: Mapping[str, float]


TRAINING = Rules(TREATMENTS, OURS, MOST)


class Fields:
    """A schema, seen for what of it takes free text."""

    def __init__(self, root: type[BaseModel] = RunConfig, rules: Rules = TRAINING) -> None:
        self.rules = rules
        self.free: set[str] = set()
        """Dotted names of fields that take any text or a path."""
        self.known: set[str] = set()
        """Dotted names of all fields and sections."""
        self.defaults: dict[str, list[Any]] = {}
        """By dotted name what fields have that nobody sets."""
        self._walk(root, ())

    def treatment(self, name: str) -> Treatment | None:
        """How a field is treated; None: it takes numbers and fixed words only."""
        if name in self.rules.treatments:
            return self.rules.treatments[name]
        return "never" if name in self.free else None

    def _walk(self, section: type[BaseModel], above: tuple[str, ...]) -> None:
        for key, field in section.model_fields.items():
            name = ".".join((*above, key))
            self.known.add(name)
            if not field.is_required():
                self.defaults.setdefault(name, []).append(field.get_default(call_default_factory=True))
            if any(_takes_text(each) for each in (field.annotation,)):
                self.free.add(name)
            leaves = field_leaves(field)
            for below in [*sections_of(leaves), *entry_sections(leaves)]:
                self._walk(below, (*above, key))


def _takes_text(annotation: Any) -> bool:
    """Whether some value of this type is free text; what is not known to be none is taken for it."""
    return any(not _is_closed(part) for part in _parts(annotation))


def _parts(annotation: Any) -> Iterator[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _parts(arguments[0])
    elif origin is Literal or not arguments:
        yield annotation
    else:
        for each in arguments:
            if each is not Ellipsis and not isinstance(each, FieldInfo):
                yield from _parts(each)


def _is_closed(part: Any) -> bool:
    if get_origin(part) is Literal or part in (int, float, bool, type(None)):
        return True
    return isinstance(part, type) and issubclass(part, BaseModel) and part is not Path
