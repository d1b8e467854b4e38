"""Makes a RunConfig: the schema's defaults, then a YAML recipe, then `a.b=c` overrides; and writes one back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from drumline.config.explain import explain
from drumline.config.fields import locate
from drumline.config.problem import Place, Problem, refuse
from drumline.config.recipes import find_recipe
from drumline.config.schema import RunConfig
from drumline.config.source import Dumper, Layer, from_mapping, read_file, read_text

M = TypeVar("M", bound=BaseModel)


def load_config(recipe: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe (a path, or the name of a packed one; None: defaults only) and apply overrides in their order.

    An override's value is YAML; a section given whole replaces the section. Raises ConfigError that lists every mistake
    with its file and line, or its override.
    """
    layer = Layer({}, {(): Place("the defaults")}) if recipe is None else read_file(find_recipe(recipe))
    for override in overrides:
        apply_override(layer, override)
    return validated(layer, RunConfig)


def config_from_mapping(mapping: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Make a RunConfig from plain values and overrides; `source` is what errors call the values.

    Raises ConfigError as load_config does.
    """
    layer = from_mapping(mapping, source)
    for override in overrides:
        apply_override(layer, override)
    return validated(layer, RunConfig)


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """What overrides say, as nested sections; nobody has looked whether it is right. Raises ConfigError for no YAML."""
    layer = Layer({}, {(): Place("the overrides")})
    for override in overrides:
        apply_override(layer, override)
    values: dict[str, Any] = layer.value
    return values


def dump_config(config: RunConfig) -> str:
    """Write every setting as YAML; load_config reads an equal RunConfig from it."""
    return _dump(config.model_dump(mode="json"))


def dump_changed(recipe: str, overrides: Sequence[str]) -> str:
    """Write what a recipe says itself, with overrides in it, as YAML: without the defaults. Raises as load_config."""
    load_config(recipe, overrides)
    layer = read_file(find_recipe(recipe))
    for override in overrides:
        apply_override(layer, override)
    return _dump(layer.value)


def _dump(values: Any) -> str:
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)


def apply_override(layer: Layer, override: str, *, option: str = "--set", example: str = "train.lr=0.001") -> None:
    """Put what `a.b=c` says into a layer. Raises ConfigError for what is none, with the example as its fix."""
    source = f"{option} {override}"
    name, equals, text = override.partition("=")
    key = tuple(part.strip() for part in name.split("."))
    if not equals or not all(key):
        raise refuse([Problem(Place(source), (), "this is not KEY=VALUE", f"write it as in {option} {example}")])
    layer.put(key, read_text(text, source, numbered=False))


def validated(layer: Layer, root: type[M]) -> M:
    """Make a `root` of a layer. Raises ConfigError that lists every mistake with its place."""
    _fill_kinds(layer.value, root)
    error, adapter = None, TypeAdapter(root)
    try:
        config = adapter.validate_python(layer.value)
    except ValidationError as first:
        _restore_texts(first, layer, root)
        try:
            config = adapter.validate_python(layer.value)
        except ValidationError as second:
            error = second
    known = {problem.key for problem in layer.problems}
    found = explain(error, layer, root) if error else []
    problems = layer.problems + [problem for problem in found if problem.key not in known]
    if problems:
        raise refuse(problems)
    return config


def _fill_kinds(values: dict[str, Any], root: type[BaseModel]) -> None:
    """A section that names no kind is of the default's kind, as each of its other keys has its default."""
    for name, field in root.model_fields.items():
        section = values.get(name)
        if isinstance(field.default, BaseModel) and isinstance(section, dict) and hasattr(field.default, "kind"):
            section.setdefault("kind", field.default.kind)


def _restore_texts(error: ValidationError, layer: Layer, root: type[BaseModel]) -> None:
    """Where text is wanted, a scalar is what was typed: `name: 1.10` is no number, `gpus: [0]` holds no number."""
    for found in error.errors(include_url=False):
        if found["type"] not in ("string_type", "path_type") or found["input"] is None:
            continue
        key = locate(root, found["loc"]).key
        place = layer.places.get(key)
        if place and place.text is not None:
            parent = layer.value
            for part in key[:-1]:
                parent = parent[part]
            parent[key[-1]] = place.text
