"""Images in one folder a class."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from PIL import Image

from drumline.config.data import ImageFolders, WeightedPaths
from drumline.data import image_folders
from drumline.data.image_folders import list_images, load_image_folders
from drumline.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of two classes, one of them further below, among files that are no images."""
    for path in ("cat/10.png", "cat/9.JPG", "dog/more/a.webp"):
        (tmp_path / "set" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / "set" / path)
    (tmp_path / "set/cat/notes.txt").write_text("no image")
    (tmp_path / "set/cat/.hidden.png").write_text("no image")
    (tmp_path / "set/.git").mkdir()
    return tmp_path / "set"


def test_images_are_found_by_class(folder: Path) -> None:
    listing = list_images(folder, "data.train")
    assert [str(path.relative_to(folder)) for path in listing.paths] == ["cat/10.png", "cat/9.JPG", "dog/more/a.webp"]
    assert listing.unreadable == ()


def test_rows_are_paths_with_the_folders_name(folder: Path) -> None:
    splits = load_image_folders(ImageFolders(train=[str(folder)]))
    rows = splits.train
    assert len(rows) == 3 and splits.eval is None
    assert rows[2] == {"image": str(folder / "dog/more/a.webp"), "label": "dog"}
    assert pickle.loads(pickle.dumps(rows))[0]["label"] == "cat"
    assert splits.schema.describe() == "3 rows\nimage: image; label: text (2 different)"
    assert splits.schema.distinct("label") == ["cat", "dog"]


def test_files_that_cannot_be_read_are_left_out_and_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "dog/empty.png").touch()
    (folder / "dog/page.png").write_text("<html>")
    with caplog.at_level(logging.WARNING, "drumline"):
        splits = load_image_folders(ImageFolders(train=[str(folder)]))
    assert (len(splits.train), splits.schema.num_bad) == (3, 2)
    assert "2 files" in caplog.text and "dog/empty.png" in caplog.text and "dog/page.png" in caplog.text


def test_of_very_many_files_only_the_size_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folders, "MAX_OPENED", 2)
    (folder / "dog/empty.png").touch()
    (folder / "dog/page.png").write_text("<html>")
    listing = list_images(folder, "data.train")
    assert [path.name for path in listing.unreadable] == ["empty.png"]


def test_several_folders_with_weights(folder: Path) -> None:
    train: list[str | WeightedPaths] = [str(folder), WeightedPaths(paths=[str(folder)], weight=2.0)]
    splits = load_image_folders(ImageFolders(train=train, eval=[str(folder)]))
    assert (len(splits.train), splits.train.rows_per_epoch) == (6, 9)
    assert splits.eval is not None and len(splits.eval) == 3


def test_folders_that_hold_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train: .*absent is no folder"):
        list_images(tmp_path / "absent", "data.train")
    with pytest.raises(DataError, match=r"data\.eval: .*cat holds no folders"):
        list_images(folder / "cat", "data.eval")
    (tmp_path / "other/a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"other holds no image\n  fix: put images into its folders"):
        list_images(tmp_path / "other", "data.train")
    (tmp_path / "other/a/x.png").touch()
    with pytest.raises(DataError, match=r"other holds 1 files that cannot be read"):
        list_images(tmp_path / "other", "data.train")
