"""Reads the schema itself: which keys there are, which kinds a section has, and what a key wants, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drumline.config.problem import Key, listed

Model = type[BaseModel]


@dataclass(frozen=True)
class Leaf:
    """One alternative of an annotation: a type and what limits its values."""

    type: Any
    limits: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Spot:
    """A place in the schema: `owner` is the section that the key's last name was looked up in."""

    key: Key
    owner: Model
    leaves: tuple[Leaf, ...]


def leaves_of(annotation: Any, limits: Sequence[Any] = ()) -> tuple[Leaf, ...]:
    """Take an annotation apart into its alternatives."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return leaves_of(inner, (*limits, *more))
    if get_origin(annotation) in (Union, UnionType):
        return tuple(leaf for part in get_args(annotation) for leaf in leaves_of(part, limits))
    flat = (each for limit in limits for each in (limit.metadata if isinstance(limit, FieldInfo) else [limit]))
    return (Leaf(annotation, tuple(flat)),)


def field_leaves(field: FieldInfo) -> tuple[Leaf, ...]:
    """The alternatives of a field."""
    return leaves_of(field.annotation, field.metadata)


def sections_of(leaves: Sequence[Leaf]) -> list[Model]:
    """Those alternatives that are sections."""
    return [leaf.type for leaf in leaves if isinstance(leaf.type, type) and issubclass(leaf.type, BaseModel)]


def is_choice(leaves: Sequence[Leaf]) -> bool:
    """Whether a section is only one of the things that a key takes: text or a section."""
    others = [leaf for leaf in leaves if leaf.type is not NoneType]
    return 0 < len(sections_of(leaves)) < len(others)


def entry_sections(leaves: Sequence[Leaf]) -> list[Model]:
    """Sections that stand in a list."""
    lists = [leaf.type for leaf in leaves if get_origin(leaf.type) is list]
    return [section for each in lists for section in sections_of(leaves_of(get_args(each)[0]))]


def kind_of(section: Model) -> str:
    """The name by which a union of sections chooses this one."""
    return str(section.model_fields["kind"].default)


def locate(root: Model, location: Sequence[str | int]) -> Spot:
    """Follow pydantic's location of an error, which names a kind or type after each union, down to the key it means."""
    key: Key = ()
    owner = root
    leaves: tuple[Leaf, ...] = (Leaf(root),)
    for part in location:
        sections = sections_of(leaves)
        if is_choice(leaves):
            # Which of them was tried: a section by its class, to be followed; anything else is this key's own matter.
            chosen = tuple(Leaf(section) for section in sections if section.__name__ == part)
            if not chosen:
                break
            leaves = chosen
        elif len(sections) > 1:
            leaves = tuple(Leaf(section) for section in sections if kind_of(section) == part)
            owner = leaves[0].type
        elif sections:
            owner, key = sections[0], (*key, part)
            field = owner.model_fields.get(str(part))
            leaves = field_leaves(field) if field else ()
        elif isinstance(part, int):
            key = (*key, part)
            leaves = leaves_of(get_args(leaves[0].type)[0])
        elif get_origin(leaves[0].type) is dict:
            key = (*key, part)
            leaves = leaves_of(get_args(leaves[0].type)[1])
        else:
            break
    return Spot(key, owner, leaves)


def all_keys(section: Model, prefix: Key = ()) -> Iterator[Key]:
    """Yield every key of a section and of all sections below it, those of each kind included."""
    for name, field in section.model_fields.items():
        yield (*prefix, name)
        for below in sections_of(field_leaves(field)):
            yield from all_keys(below, (*prefix, name))


def choices_of(leaves: Sequence[Leaf]) -> list[str]:
    """The words that a key takes."""
    return [str(word) for leaf in leaves if get_origin(leaf.type) is Literal for word in get_args(leaf.type)]


def wanted(leaves: Sequence[Leaf]) -> str:
    """Say what a key takes: 'a whole number above 0 or auto'."""
    words = [_wanted_one(leaf) for leaf in leaves if get_origin(leaf.type) is not Literal and leaf.type is not NoneType]
    if len(sections_of(leaves)) > 1:
        words = ["a section with a kind"]
    words += choices_of(leaves)
    return listed(words + ["null"] * any(leaf.type is NoneType for leaf in leaves))


def _wanted_one(leaf: Leaf) -> str:
    arguments = get_args(leaf.type)
    if get_origin(leaf.type) is tuple:
        return f"a list of {len(arguments)}, each {wanted(leaves_of(arguments[0]))}"
    if get_origin(leaf.type) is dict:
        text = f"names with values (each {wanted(leaves_of(arguments[1]))})"
    elif get_origin(leaf.type) is list:
        text = f"a list (each entry {wanted(leaves_of(arguments[0]))})"
    else:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
        text = names.get(leaf.type, "a section")
    limits = [
        f"{words} {getattr(limit, attribute)}"
        for limit in leaf.limits
        for attribute, words in _LIMITS.items()
        if getattr(limit, attribute, None) is not None
    ]
    return " ".join([text, *limits[:1]]) + "".join(f" and {limit}" for limit in limits[1:])


_LIMITS = {
    "gt": "above",
    "ge": "not below",
    "lt": "below",
    "le": "not above",
    "min_length": "with a length of at least",
    "pattern": "of the form",
}
