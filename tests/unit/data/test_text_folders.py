"""Texts from one folder a class."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from drumline.config.data import TextFolders, WeightedPaths
from drumline.data import text_folders
from drumline.data.mixture import Mixture
from drumline.data.text_folders import load_text_folders
from drumline.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            for number in (2, 10):
                path = tmp_path / split / label / "deep" / f"{number}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{split} {label} {number} ä")
    (tmp_path / "train" / "pos" / ".hidden").write_text("x")
    (tmp_path / "train" / "readme").write_text("no class")
    (tmp_path / "train" / ".git").mkdir()
    return tmp_path


def test_each_file_is_a_row_and_its_folder_the_label(folder: Path) -> None:
    splits = load_text_folders(TextFolders(train=[str(folder / "train")], eval=[str(folder / "test")]))
    assert [splits.train[i] for i in range(len(splits.train))] == [
        {"text": f"train {label} {number} ä", "label": label} for label in ("neg", "pos") for number in (2, 10)
    ]
    assert splits.eval is not None
    assert splits.eval.__getitems__([3]) == [{"text": "test pos 10 ä", "label": "pos"}]
    assert pickle.loads(pickle.dumps(splits.train))[0]["label"] == "neg"
    assert splits.schema.num_rows == 4
    assert splits.schema.distinct("label") == ["neg", "pos"]
    for index in (-1, 4):
        with pytest.raises(IndexError):
            splits.train[index]


def test_columns_are_renamed(folder: Path) -> None:
    config = TextFolders(train=[str(folder / "train")], columns={"source": "text", "target": "label"})
    splits = load_text_folders(config)
    assert splits.train[0] == {"source": "train neg 2 ä", "target": "neg"}
    assert list(splits.schema.columns) == ["source", "target"]


def test_sources_with_weights(folder: Path) -> None:
    weighted = WeightedPaths(paths=[str(folder / "test")], weight=0.5)
    train = load_text_folders(TextFolders(train=[str(folder / "train"), weighted])).train
    assert isinstance(train, Mixture)
    assert (len(train), train.rows_per_epoch) == (8, 6)
    assert train.schema is not None


def test_files_without_text_are_left_out_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "train" / "pos" / "a.txt").write_text(" \n")
    (folder / "train" / "pos" / "b.txt").write_bytes(b"caf\xe9 \xc3\xa9")
    with caplog.at_level(logging.WARNING):
        splits = load_text_folders(TextFolders(train=[str(folder / "train")]))
    assert (splits.schema.num_rows, splits.schema.num_bad) == (4, 2)
    assert f"{folder}/train/pos/a.txt is empty and 1 more" in caplog.text


def test_of_very_many_files_only_the_size_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_folders, "MAX_READ", 0)
    (folder / "train" / "pos" / "a.txt").touch()
    (folder / "train" / "pos" / "b.txt").write_bytes(b"caf\xe9 \xc3\xa9")
    splits = load_text_folders(TextFolders(train=[str(folder / "train")]))
    assert (splits.schema.num_rows, splits.schema.num_bad) == (5, 1)
    with pytest.raises(DataError, match=r"b\.txt is not UTF-8 text"):
        splits.train[2]


def test_folders_that_hold_nothing(folder: Path) -> None:
    def refused(*train: str, held_out: str | None = None) -> DataError:
        with pytest.raises(DataError) as caught:
            evaluated = [str(folder / held_out)] if held_out else []
            load_text_folders(TextFolders(train=[str(folder / name) for name in train], eval=evaluated))
        return caught.value

    error = refused("tran")
    assert "data.train" in error.problem
    assert "train" in error.problem.split("has ")[-1]
    assert "is a file, not a folder" in refused("train/readme").problem
    assert "holds no folders" in refused("train/pos/deep").problem
    (folder / "empty" / "a").mkdir(parents=True)
    assert "no text in" in refused("empty").problem
    assert "is in data.train and in data.eval" in refused("train", held_out="train").problem
    assert refused("train", held_out="tst").problem.startswith("data.eval: ")
