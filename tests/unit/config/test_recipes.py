"""Packed recipes and the files they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.config import recipes
from drumline.config.recipes import copy_recipe, describe_recipe, expand_path, find_recipe, recipe_names, recipes_folder
from drumline.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes of this test's own."""
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "second.yaml").write_text("seed: 2\n")
    (folder / "first.yaml").write_text("# A first recipe.\nseed: 1\n")
    (folder / "notes.txt").write_text("no recipe")
    monkeypatch.setattr(recipes, "recipes_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_real_folder_holds_the_text_that_recipes_name() -> None:
    assert (recipes_folder() / "moby_dick" / "chapter_1.txt").is_file()


def test_names_are_sorted_and_only_yaml_files(folder: Path) -> None:
    assert recipe_names() == ["first", "second"]


def test_a_bare_name_is_a_packed_recipe_even_beside_a_folder_of_that_name(folder: Path) -> None:
    Path("first").mkdir()
    assert find_recipe("first") == folder / "first.yaml"


@pytest.mark.parametrize("path", ["mine.yaml", "mine.yml", "some/where", "./first", "notes.txt"])
def test_anything_else_is_a_path(folder: Path, path: str) -> None:
    Path("notes.txt").write_text("x")
    found = "first" if path == "./first" else path
    if path == "./first":
        Path("first").write_text("seed: 1")
        assert find_recipe(Path.cwd() / path) == Path.cwd() / found
    else:
        assert find_recipe(path) == Path(found)


def test_a_mistyped_name_is_answered_with_the_nearest(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe named 'frist'.*\n.*did you mean first\?"):
        find_recipe("frist")
    with pytest.raises(ConfigError, match=r"no recipe named 'zzz'.*\n.*drumline config list"):
        find_recipe("zzz")


def test_a_recipe_is_described_by_its_first_comment(folder: Path) -> None:
    assert describe_recipe(folder / "first.yaml") == "A first recipe."
    assert describe_recipe(folder / "second.yaml") == ""


def test_copying_writes_a_new_file_or_into_a_folder_and_never_over_one(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    assert copy_recipe("first", target) == [target]
    assert target.read_text() == "# A first recipe.\nseed: 1\n"
    with pytest.raises(ConfigError, match=r"mine\.yaml exists already"):
        copy_recipe("second", target)
    assert target.read_text().endswith("seed: 1\n")
    assert copy_recipe("second", tmp_path) == [tmp_path / "second.yaml"]
    assert (tmp_path / "second.yaml").read_text() == "seed: 2\n"
    with pytest.raises(ConfigError, match="cannot be copied: No such file"):
        copy_recipe("first", tmp_path / "absent" / "mine.yaml")
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be copied"):
        copy_recipe("absent.yaml", tmp_path / "new.yaml")
    assert not (tmp_path / "new.yaml").exists()


def test_a_packed_python_file_is_copied_too_and_the_copy_names_it(folder: Path, tmp_path: Path) -> None:
    (folder / "own.yaml").write_text("model: {kind: python, file: recipes:own_model.py}\ndata: recipes:a/b.csv\n")
    (folder / "own_model.py").write_text("x = 1\n")
    mine = Path("mine")
    mine.mkdir()
    assert copy_recipe("own", mine) == [mine / "own.yaml", mine / "own_model.py"]
    assert (mine / "own_model.py").read_text() == "x = 1\n"
    text = (mine / "own.yaml").read_text()
    assert text == "model: {kind: python, file: mine/own_model.py}\ndata: recipes:a/b.csv\n"
    (mine / "own.yaml").unlink()
    with pytest.raises(ConfigError, match=r"own_model\.py exists already"):
        copy_recipe("own", mine)
    assert not (mine / "own.yaml").exists()


def test_the_prefix_stands_for_the_folder(folder: Path) -> None:
    assert expand_path("recipes:moby_dick/*.txt") == folder / "moby_dick" / "*.txt"
    assert expand_path("data/recipes:x") == "data/recipes:x"
    assert expand_path("plain.txt") == "plain.txt"
