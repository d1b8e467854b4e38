"""Writes the reference pages docs/config.md, service-config.md and predict-config.md from the schemas: `make docs`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from drumline.config.fields import Model, entry_sections, field_leaves, kind_of, sections_of, wanted
from drumline.config.inference import InferenceConfig
from drumline.config.schema import RunConfig
from drumline.config.service import ServiceConfig

_HEAD = """# Settings

<!-- Written by `make docs` from src/drumline/config: change the descriptions there. -->

A run is described by one set of settings, the same in a recipe (YAML), after `--set` and in Python:

```yaml
train:
  global_batch: 32
  lr: 0.003
```

is `--set train.global_batch=32 --set train.lr=0.003`, and `TrainConfig(global_batch=32, lr=0.003)` or
`RunConfig.model_validate({"train": {"global_batch": 32, "lr": 0.003}})`. Later ones win: the defaults below, then the
recipe, then each `--set` in its order. A key that is not listed here is an error. YAML's `null` is Python's `None`, and
what "none" means below. `drumline config show RECIPE` prints what a recipe comes to.
"""


_SERVICE_HEAD = """# Settings of the service

<!-- Written by `make docs` from src/drumline/config/service.py: change the descriptions there. -->

The same in a YAML file (`drumline serve --config FILE`), after `--set` and in Python:

```yaml
port: 8000
files:
  model_names: {gpt2: /models/gpt2}
```

is `--set port=8000 --set files.model_names.gpt2=/models/gpt2`, and `ServiceConfig(port=8000, files=...)`. Later ones
win: the defaults below, then the file, then each `--set` in its order. A key that is not listed here is an error.
YAML's `null` is Python's `None`, and what "none" means below. Relative paths count from the folder in which the service
is started.
"""


_PREDICTION_HEAD = """# Settings of a prediction run

<!-- Written by `make docs` from src/drumline/config/inference.py: change the descriptions there. -->

The same in a YAML file (`drumline infer --config FILE`), after `--set` and in Python:

```yaml
task:
  kind: generate
  max_new_tokens: 64
```

is `--set task.kind=generate --set task.max_new_tokens=64`. Later ones win: the defaults below, then the file, then the
command's own options, then each `--set` in its order. A key that is not listed here is an error. YAML's `null` is
Python's `None`, and what "none" means below.
"""


def config_page() -> str:
    """docs/config.md in Markdown: a table a section, in the schema's order."""
    return "\n".join([_HEAD, *_section(RunConfig, "", "")])


def service_page() -> str:
    """docs/service-config.md, made as config_page is."""
    return "\n".join([_SERVICE_HEAD, *_section(ServiceConfig, "", "")])


def prediction_page() -> str:
    """docs/predict-config.md, made as config_page is."""
    return "\n".join([_PREDICTION_HEAD, *_section(InferenceConfig, "", "")])


def _section(section: Model, name: str, heading: str) -> Iterator[str]:
    """A section's text, table and inner sections; `name` is its dotted key, empty for the whole config."""
    yield from _table(section, heading)
    for key, field in _inner_fields(section).items():
        yield from _inner(f"{name}.{key}".lstrip("."), field)


def _inner_fields(section: Model) -> dict[str, FieldInfo]:
    return {key: field for key, field in section.model_fields.items() if sections_of(field_leaves(field))}


def _table(section: Model, heading: str) -> Iterator[str]:
    if heading:
        yield f"{heading}\n"
    yield f"{' '.join((section.__doc__ or '').split())}\n"
    inner = _inner_fields(section)
    rows = [_row(key, field) for key, field in section.model_fields.items() if _has_row(field, is_inner=key in inner)]
    if rows:
        yield "| setting | takes | default | what it is |\n|---|---|---|---|"
        yield from rows
        yield ""


def _inner(name: str, field: FieldInfo) -> Iterator[str]:
    sections = sections_of(field_leaves(field))
    if len(sections) == 1:
        yield from _section(sections[0], name, f"## {name}")
    else:
        yield f"## {name}\n\nOne of these kinds, chosen by `{name}.kind`: {', '.join(map(kind_of, sections))}.\n"
        for section in sections:
            note = " (default)" if isinstance(field.default, section) else ""
            yield from _table(section, f"### {name}, kind: {kind_of(section)}{note}")
        # Each once: kinds of one section share them.
        inner = {key: field for section in sections for key, field in _inner_fields(section).items()}
        for key, field in inner.items():
            yield from _inner(f"{name}.{key}", field)
    yield from _entries(name, sections)


def _entries(name: str, sections: list[Model]) -> Iterator[str]:
    """Sections that stand in lists, each once: kinds of one section share them."""
    found = {
        (key, entry): None
        for section in sections
        for key, field in section.model_fields.items()
        for entry in entry_sections(field_leaves(field))
    }
    for key, entry in found:
        yield from _section(entry, f"{name}.{key}", f"## {name}.{key}, an entry that is a section")


def _has_row(field: FieldInfo, *, is_inner: bool) -> bool:
    """A section has tables of its own and a row only where it may be absent; a kind is named in its heading."""
    return field.default is None if is_inner else bool(field.description)


def _row(key: str, field: FieldInfo) -> str:
    cells = (
        f"`{key}`",
        _escaped(wanted(field_leaves(field))),
        _default(field),
        _escaped(field.description or ""),
    )
    return f"| {' | '.join(cells)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    text = value or "''" if isinstance(value, str) else json.dumps(value, default=str).strip('"')
    return f"`{text}`"


def _escaped(text: str) -> str:
    """Text as it stands, not as Markdown: `runs/<name>` would lose its end, `*` and `[` their meaning."""
    return re.sub(r"([<>|*[])", r"\\\1", text)
