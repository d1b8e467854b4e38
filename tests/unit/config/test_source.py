"""Reading YAML: values, lines, and everything that is refused before the schema is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.config.source import from_mapping, read_file, read_text
from drumline.errors import ConfigError


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert caught.value.fix
    return str(caught.value)


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("3E-4", 3e-4),
        ("1e6", 1e6),
        (".5", 0.5),
        ("1.", 1.0),
        ("-2.5e+3", -2500.0),
        ("1_000", 1000),
        ("010", 10),
        ("+7", 7),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("10:30", "10:30"),
        ("2024-01-02", "2024-01-02"),
        ("1_", "1_"),
        ("'3'", "3"),
        ("[1, a, [2.0]]", [1, "a", [2.0]]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_plain_values(text: str, value: Any) -> None:
    layer = read_text(text, "here")
    assert layer.value == value
    assert type(layer.value) is type(value)
    assert not layer.problems


def test_each_key_knows_its_line_and_each_scalar_its_text(tmp_path: Path) -> None:
    layer = read_file(written(tmp_path, "# first\nseed: 1\ntrain:\n  # comment\n  lr: 1.10\n  list: [a,\n    b]\n"))
    places = {key: (place.line, place.text) for key, place in layer.places.items() if key}
    assert places == {
        ("seed",): (2, "1"),
        ("train",): (3, None),
        ("train", "lr"): (5, "1.10"),
        ("train", "list"): (6, None),
        ("train", "list", 0): (6, "a"),
        ("train", "list", 1): (7, "b"),
    }


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert read_file(written(tmp_path, b"\xef\xbb\xbfseed: 1")).value == {"seed": 1}


def test_missing_file_directory_and_file_as_folder(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.yaml")
    assert "directory" in refusal(tmp_path)
    assert "Not a directory" in refusal(written(tmp_path, "seed: 1") / "below.yaml")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["recipe.yaml", "empty"]),
        ("# only a comment\n", ["recipe.yaml", "empty"]),
        ("- a\n- b\n", ["line 1", "mapping of keys to values", "a list of 2"]),
        ("# x\njust text\n", ["line 2", "mapping of keys to values", "'just text'"]),
        (b"seed: 1\nname: caf\xe9\n", ["line 2", "UTF-8"]),
        ("seed: 1\n".encode("utf-16"), ["line 1", "UTF-8"]),
        ("seed: 1\ntrain:\n\tlr: 1\n", ["line 3", "tab", "spaces"]),
        ("seed: 1\nname: a: b\n", ["line 2", "not YAML", "quotes"]),
        ("seed: 1\nname: [a\n", ["line 3", "not YAML", "brackets"]),
        ("seed: 1\nname: 'a\n", ["line 3", "not YAML"]),
        ("seed: 1\nname: %a\n", ["line 2", "put the value in quotes"]),
        ("seed: 1\nname: *a\n", ["line 2", "begins with *", "quotes"]),
        ("data:\n  train: [*.txt]\n", ["line 2", "begins with *", "quotes"]),
        ("seed: 1\n---\nseed: 2\n", ["line 2", "one recipe a file"]),
        ("seed: 1\nname: a\x00b\n", ["line 2", "control character"]),
        ("[" * 5000, ["recipe.yaml", "nested too deeply"]),
    ],
)
def test_text_that_is_no_recipe_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, parts: list[str]
) -> None:
    message = refusal(written(tmp_path, content))
    assert all(part in message for part in parts), message
    assert "recipe.yaml" in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: 1\nb: 2\na: 3\n", ["here line 3: a:", "second time", "first in line 1"]),
        ("s:\n  a: 1\n  a: 1\n", ["here line 3: s.a:", "second time", "first in line 2"]),
        ("a: !!python/object/apply:os.system ['true']\n", ["here line 1: a:", "!!python/object/apply:os.system"]),
        ("a: !!python/name:os.system\n", ["here line 1: a:", "!!python/name:os.system"]),
        ("a: !!int x\n", ["here line 1: a:", "!!int"]),
        ("a: !mine {b: 1}\n", ["here line 1: a:", "!mine"]),
        ("? [a]\n: b\n", ["here line 1", "no name"]),
        ("a: &x 1\nb: *x\n", ["here line 1: b:", "alias"]),
        ("a: &x {b: *x}\n", ["here line 1: a.b:", "alias"]),
    ],
)
def test_what_yaml_allows_and_a_recipe_does_not_is_one_problem(text: str, parts: list[str]) -> None:
    (problem,) = read_text(text, "here").problems
    assert all(part in str(problem) for part in parts), problem
    assert problem.fix


def test_the_first_of_two_equal_keys_is_kept() -> None:
    assert read_text("a: 1\na: 2\n", "here").value == {"a": 1}


def test_a_mapping_is_copied_with_its_source_as_the_place_of_all() -> None:
    given = {"train": {"betas": (0.9, 0.95)}, "seed": 3, "flag": True}
    layer = from_mapping(given, "the request")
    assert layer.value == {"train": {"betas": [0.9, 0.95]}, "seed": 3, "flag": True}
    assert layer.value["train"] is not given["train"]
    assert {str(place) for place in layer.places.values()} == {"the request"}
    assert layer.places["seed",].text == "3"
    assert layer.places["flag",].text is None


def test_putting_a_section_replaces_it_with_its_places() -> None:
    layer = read_text("a: {b: 1, c: 2}\nd: 3\n", "file")
    layer.put(("a",), read_text("{e: 4}", "override", numbered=False))
    layer.put(("f", "g"), read_text("5", "second", numbered=False))
    assert layer.value == {"a": {"e": 4}, "d": 3, "f": {"g": 5}}
    assert ("a", "b") not in layer.places
    assert str(layer.place_of(("a", "e"))) == "override"
    assert str(layer.place_of(("a", "absent"))) == "override"
    assert str(layer.place_of(("f",))) == "second"
    assert str(layer.place_of(("d",))) == "file line 2"
