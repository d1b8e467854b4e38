"""Every setting says what it is: the text becomes help, OpenAPI and the reference page."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from drumline.config.schema import RunConfig


def undescribed(section: type[BaseModel], name: str = "") -> list[str]:
    """Dotted names of settings without a description, and of sections without a docstring.

    A section is described by its docstring; the `kind` that picks a section says nothing of its own.
    """
    missing = [] if section.__doc__ else [f"{name or section.__name__} (docstring of {section.__name__})"]
    for key, field in section.model_fields.items():
        dotted = f"{name}.{key}".lstrip(".")
        inner = list(sections_in(field.annotation))
        for other in inner:
            missing += undescribed(other, dotted)
        if not inner and not field.description and not _is_discriminator(key, field.annotation):
            missing.append(dotted)
    return missing


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Sections that a setting's type names, inside unions, lists and annotations too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from sections_in(part)


def _is_discriminator(key: str, annotation: Any) -> bool:
    return key == "kind" and typing.get_origin(annotation) is Literal


def test_every_setting_is_described() -> None:
    missing = undescribed(RunConfig)
    assert not missing, "\n".join(missing)


class Inner(BaseModel):
    """Described."""

    kind: Literal["a", "b"] = "a"
    silent: int = 1
    told: int = Field(1, description="Told.")


class Outer(BaseModel):
    """Described."""

    one: Annotated[Inner, "note"] = Inner()
    many: list[Inner] | None = None
    silent: str = ""


class Undocumented(Outer):
    pass


def test_missing_descriptions_are_found() -> None:
    assert undescribed(Outer) == ["one.silent", "many.silent", "silent"]
    Undocumented.__doc__ = None
    assert undescribed(Undocumented)[0] == "Undocumented (docstring of Undocumented)"
