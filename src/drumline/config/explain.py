"""Turns what pydantic found into lines that name place, key, mistake, nearest valid name and fix, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from drumline.config.fields import (
    Model,
    Spot,
    all_keys,
    choices_of,
    field_leaves,
    is_choice,
    kind_of,
    locate,
    sections_of,
    wanted,
)
from drumline.config.problem import Key, Problem, dotted, listed, shown
from drumline.config.source import Layer

_OTHER_NAMES = {"learning_rate": "lr", "batch_size": "global_batch"}
"""What the field calls by a name too far from ours for a comparison of letters to find."""


def explain(error: ValidationError, layer: Layer, root: Model) -> list[Problem]:
    """List the mistakes that keep `layer` from being a `root`, one a key, in the schema's order."""
    problems: dict[Key, Problem] = {}
    for found in error.errors(include_url=False):
        spot = locate(root, found["loc"])
        if isinstance(found["input"], Mapping) and is_choice(spot.leaves):
            continue  # it was meant as the section, whose own mistakes are reported too
        if found["type"] == "extra_forbidden":
            problem = _unknown_key(spot, layer, root)
        elif found["type"] == "missing":
            problem = Problem(
                layer.place_of(spot.key), spot.key, f"is missing: {wanted(spot.leaves)}", f"add {dotted(spot.key)}"
            )
        elif found["type"] in ("union_tag_invalid", "union_tag_not_found"):
            problem = _kind(spot, layer, found.get("ctx", {}).get("tag"))
        else:
            problem = _value(spot, layer, found["input"])
        # A value that fits none of several alternatives is reported once for each of them.
        problems.setdefault(problem.key, problem)
    return list(problems.values())


def nearest(word: str, words: list[str]) -> str | None:
    """The word that was most likely meant, or None."""
    return next(iter(get_close_matches(word, words, 1)), None)


def _value(spot: Spot, layer: Layer, value: Any) -> Problem:
    key, sections = spot.key, sections_of(spot.leaves)
    if isinstance(value, str) and layer.places.get(key) and not sections:
        value = layer.places[key].text or value
    what = f"wants {wanted(spot.leaves)}, not {shown(value)}"
    word = nearest(str(value), choices_of(spot.leaves))
    if word:
        fix = f"did you mean {word}?"
    elif sections and len(sections) > 1 and value in map(kind_of, sections):
        fix = f"did you mean {dotted(key)}.kind={value}?"
    elif sections and not is_choice(spot.leaves):
        fix = f"write its keys below it, or leave {dotted(key)} out"
    elif wanted(spot.leaves).startswith("a list") and isinstance(value, str | int | float):
        fix = f"write it in brackets: [{value}]"
    else:
        fix = "correct the value" + _default(spot.owner.model_fields.get(str(key[-1])))
    return Problem(layer.place_of(key), key, what, fix)


def _default(field: FieldInfo | None) -> str:
    if field is None or field.default in (None, PydanticUndefined):
        return ""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return f", or leave the key out: it is {str(default).lower() if isinstance(default, bool) else default} then"


def _kind(spot: Spot, layer: Layer, kind: str | None) -> Problem:
    key, kinds = (*spot.key, "kind"), [kind_of(section) for section in sections_of(spot.leaves)]
    if kind is None:
        return Problem(layer.place_of(key), key, f"is missing: {listed(kinds)}", f"add {dotted(key)}")
    word = nearest(kind, kinds)
    fix = f"did you mean {word}?" if word else f"choose one of {listed(kinds)}"
    return Problem(layer.place_of(key), key, f"'{kind}' is no kind; there are {listed(kinds, 'and')}", fix)


def _unknown_key(spot: Spot, layer: Layer, root: Model) -> Problem:
    *above, name = spot.key
    section = tuple(above)
    place, name = layer.place_of(spot.key), str(name)
    siblings = sections_of(field_leaves(root.model_fields[str(above[0])])) if len(above) == 1 else []
    others = [kind_of(sibling) for sibling in siblings if name in sibling.model_fields and sibling is not spot.owner]
    if others:
        kind = dotted((*section, "kind"))
        has = "has" if len(others) == 1 else "have"
        what = f"{kind} is {kind_of(spot.owner)}, which has no such key; {listed(others, 'and')} {has}"
        chosen = layer.places.get((*section, "kind"))
        if chosen and place and chosen.source != place.source and place.line:
            whole = f"--set '{dotted(section)}={{kind: {kind_of(spot.owner)}}}'"
            fix = f"remove line {place.line}, or replace the whole section: {whole}"
        else:
            fix = f"remove the key, or set {kind} to {listed(others)}"
        return Problem(place, spot.key, what, fix)
    means = _meant(_OTHER_NAMES.get(name, name), section, list(spot.owner.model_fields), root)
    if means:
        return Problem(place, spot.key, "there is no such key", f"did you mean {listed(means)}?")
    known = listed(list(spot.owner.model_fields), "and")
    where = f"{dotted(section)} has" if section else "there are"
    return Problem(place, spot.key, "there is no such key", f"{where} {known}")


def _meant(name: str, section: Key, names: list[str], root: Model) -> list[str]:
    """Dotted keys that may have been meant: near names in the section, then the name elsewhere, then near it."""
    here = [dotted((*section, near)) for near in get_close_matches(name, names, 1)]
    keys = list(dict.fromkeys(all_keys(root)))
    elsewhere = [dotted(key) for key in keys if key[-1] == name and key[:-1] != section][:2]
    if here or elsewhere:
        return list(dict.fromkeys(here + elsewhere))
    near = get_close_matches(name, [str(key[-1]) for key in keys], 1)
    return [dotted(key) for key in keys if key[-1] in near][:2]
