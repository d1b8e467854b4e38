"""Reads YAML into plain values, keeping for each key where it stands, so that an error can name file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from drumline.config.problem import Key, Place, Problem, refuse, shown

_TAG = "tag:yaml.org,2002:"
_DIGITS = "[0-9]+(?:_[0-9]+)*"
_NUMBERS = {
    _TAG + "int": re.compile(rf"^[-+]?{_DIGITS}$"),
    _TAG + "float": re.compile(rf"^[-+]?(?:\.{_DIGITS}|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars: PyYAML follows 1.1, where 3e-4 is text, `on` a boolean and 10:00 the number 600."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (how PyYAML keeps them)


class Dumper(yaml.SafeDumper):
    """Writes YAML that this reader and a YAML 1.1 reader both take for the same values."""


_Loader.add_implicit_resolver(_TAG + "null", re.compile("^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_TAG + "bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
    Dumper.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


@dataclass
class Layer:
    """Plain values with their places, and what is wrong with how they are written."""

    value: Any
    places: dict[Key, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place_of(self, key: Key) -> Place | None:
        """Where a key stands, or the section that it is missing from."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key)

    def put(self, key: Key, other: Layer) -> None:
        """Set a value, which takes the place of all that was there; sections on the way to it are made."""
        parent, place = self.value, other.places[()]
        for depth in range(1, len(key)):
            if not isinstance(parent.get(key[depth - 1]), dict):
                parent[key[depth - 1]] = {}
                self.places[key[:depth]] = place
            parent = parent[key[depth - 1]]
        parent[key[-1]] = other.value
        self.places = {known: at for known, at in self.places.items() if known[: len(key)] != key}
        self.places |= {(*key, *below): at for below, at in other.places.items()}
        self.problems += (Problem(p.place, (*key, *p.key), p.what, p.fix) for p in other.problems)


FROM_A_RECIPE = "start from a packed recipe: drumline config copy quickstart PATH"


def read_file(path: Path, *, called: str = "a recipe", if_empty: str = FROM_A_RECIPE) -> Layer:
    """Read settings. Raises ConfigError for what is no YAML mapping in UTF-8, with the line where there is one.

    called, if_empty: what errors call such a file, and what to do about one without content.
    """
    name = str(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise refuse([Problem(Place(name), (), "there is no such file", "check the path")]) from None
    except IsADirectoryError:
        raise refuse([Problem(Place(name), (), "this is a directory", "name a YAML file in it")]) from None
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}"
        raise refuse([Problem(Place(name), (), what, "check the path and its permissions")]) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = Place(name, data.count(b"\n", 0, error.start) + 1)
        raise refuse([Problem(place, (), "this is not UTF-8 text", "save the file as UTF-8")]) from None
    layer = read_text(text, name)
    if layer.value is None:
        raise refuse([Problem(Place(name), (), "the file is empty", if_empty)])
    if not isinstance(layer.value, dict):
        what = f"{called} is a mapping of keys to values, not {shown(layer.value)}"
        raise refuse([Problem(layer.places[()], (), what, "write lines of the form 'key: value', such as 'seed: 0'")])
    return layer


def read_text(text: str, source: str, *, numbered: bool = True) -> Layer:
    """Read YAML from text; `numbered` says whether its lines are worth naming. Raises ConfigError for other text."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except ReaderError as error:
        place = Place(source, text.count("\n", 0, error.position) + 1 if numbered else None)
        what = "a control character, which YAML does not allow"
        raise refuse([Problem(place, (), what, "remove it")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(source, mark.line + 1 if numbered and mark else None)
        raise refuse([_syntax_problem(place, error.problem or "it ends too early", error.context or "")]) from None
    except RecursionError:
        raise refuse([Problem(Place(source), (), "nested too deeply", "check brackets and indentation")]) from None
    layer = Layer(None, {(): Place(source)})
    if node is not None:
        layer.value = _Builder(layer, source, numbered).build(node, ())
    return layer


def from_mapping(mapping: Mapping[str, Any], source: str) -> Layer:
    """Take values that are plain already, such as a request's body; the place of each is the source."""
    layer = Layer(None)

    def copy(value: Any, key: Key) -> Any:
        # Only of a number is its text what anybody would have typed; true and null have no text to fall back on.
        text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        layer.places[key] = Place(source, text=text)
        if isinstance(value, Mapping):
            return {str(name): copy(item, (*key, str(name))) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [copy(item, (*key, index)) for index, item in enumerate(value)]
        return value

    layer.value = copy(mapping, ())
    return layer


def _syntax_problem(place: Place, what: str, doing: str) -> Problem:
    if "\\t" in what:
        return Problem(place, (), "a tab where YAML wants spaces", "indent with spaces")
    fixes = {
        "mapping values are not allowed": "put a value that holds ': ' in quotes, or correct the indentation",
        "alias": "put a value that begins with * in quotes",
        "cannot start any token": "put the value in quotes",
        "another document": "keep one recipe a file: remove what follows ---",
    }
    fix = next(
        (fix for part, fix in fixes.items() if part in f"{what} {doing}"),
        "check indentation, brackets and quotes there",
    )
    return Problem(place, (), f"this is not YAML: {what}", fix)


class _Builder:
    """Turns composed nodes into values; nothing but null, booleans, numbers and text is ever constructed."""

    def __init__(self, layer: Layer, source: str, numbered: bool) -> None:
        self._layer = layer
        self._source = source
        self._numbered = numbered
        self._seen: set[int] = set()

    def build(self, node: yaml.Node, key: Key) -> Any:
        """Build one node and all below it."""
        self._layer.places[key] = self._place(node)
        if id(node) in self._seen:
            # Also what keeps a recipe from containing itself, or from growing without end.
            return self._reject(node, key, "an alias (*name)", "write the value out again")
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*key, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, key)

    def _place(self, node: yaml.Node) -> Place:
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else None
        return Place(self._source, node.start_mark.line + 1 if self._numbered else None, text)

    def _reject(self, node: yaml.Node, key: Key, what: str, fix: str) -> None:
        self._layer.problems.append(Problem(self._place(node), key, f"{what} is not read in a recipe", fix))

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                self._reject(name_node, key, "a key that is no name", "write a name before the colon")
                continue
            path, place = (*key, str(name_node.value)), self._place(name_node)
            if path[-1] in values:
                first = self._layer.places[path].line
                what = "the key stands here a second time" + (f" (first in line {first})" if first else "")
                self._layer.problems.append(Problem(place, path, what, "keep one of the two"))
                continue
            values[str(name_node.value)] = self.build(value_node, path)
            # A section stands where its key does, not where its first entry does.
            self._layer.places[path] = Place(place.source, place.line, self._layer.places[path].text)
        return values

    def _scalar(self, node: yaml.Node, key: Key) -> Any:
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        if node.tag == _TAG + "str":
            return text
        if node.tag == _TAG + "null":
            return None
        if node.tag == _TAG + "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if node.tag in _NUMBERS and _NUMBERS[node.tag].match(text):
            return int(text) if node.tag == _TAG + "int" else float(text)
        return self._reject(node, key, f"the tag {node.tag.replace(_TAG, '!!')}", "write the plain value")
