from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.config.data import TextData, WeightedPaths
from drumline.data.mixture import Mixture
from drumline.data.packing import PackedRows
from drumline.data.text import load_text
from drumline.data.tokenizers import ByteTokenizer
from drumline.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, text in (1, "one"), (2, "two"), (10, "ten"):
        (tmp_path / f"chapter_{number}.txt").write_text(text)
    return tmp_path


def data(folder: Path, train: str, *held_out: str) -> TextData:
    return TextData(
        train=[str(folder / train)],
        eval=[str(folder / name) for name in held_out],
        context=4,
        cache_dir=folder / "cache",
    )


def column(rows: PackedRows | Mixture, name: str) -> list[list[int]]:
    return [rows[i][name].tolist() for i in range(len(rows))]


def test_rows_of_both_splits(folder: Path) -> None:
    splits = load_text(data(folder, "chapter_[12].txt", "chapter_10.txt"))
    assert isinstance(splits.tokenizer, ByteTokenizer)
    assert column(splits.train, "input_ids") == [[*b"one", 256], [*b"two", 0]]
    assert column(splits.train, "labels") == [[*b"ne", 256, *b"t"], [*b"wo", 256, -100]]
    assert splits.eval is not None
    assert column(splits.eval, "labels") == [[*b"en", 256, -100]]


def test_without_evaluation_files(folder: Path) -> None:
    splits = load_text(data(folder, "*.txt"))
    assert splits.eval is None
    assert isinstance(splits.train, PackedRows)
    stream = splits.train.tokens
    assert bytes(i if i < 256 else 10 for i in stream[0 : len(stream)].tolist()) == b"one\ntwo\nten\n"


def test_build_is_called_once_and_decides_when(folder: Path) -> None:
    written: list[bool] = []

    def build(write: Callable[[], None]) -> None:
        assert not (folder / "cache").exists()
        write()
        written.append(True)

    load_text(data(folder, "chapter_1.txt", "chapter_2.txt"), build)
    assert written == [True]


def test_cache_that_the_other_rank_did_not_build_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match="there is no tokenised text at"):
        load_text(data(folder, "chapter_1.txt"), lambda write: None)


def test_file_in_both_splits_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"chapter_10\.txt is in data\.train and in data\.eval"):
        load_text(data(folder, "*.txt", "chapter_10.txt"))
    with pytest.raises(DataError, match=r"chapter_1\.txt and 1 more is in"):
        load_text(data(folder, "*.txt", "chapter_[12].txt"))
    assert not (folder / "cache").exists()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_file_in_both_splits_under_another_name_is_refused(folder: Path, link: Callable[[Path, Path], None]) -> None:
    link(folder / "chapter_2.txt", folder / "held_out.text")
    with pytest.raises(DataError, match=r"held_out\.text is in data\.train and in data\.eval"):
        load_text(data(folder, "*.txt", "held_out.text"))


def test_errors_name_the_setting(folder: Path) -> None:
    with pytest.raises(DataError, match=r"data\.eval: there is no file"):
        load_text(data(folder, "*.txt", "chapter_11.txt"))


def test_sources_with_weights_are_packed_each_for_itself(folder: Path) -> None:
    weighted = WeightedPaths(paths=[str(folder / "chapter_10.txt")], weight=2)
    plain = [str(folder / f"chapter_{number}.txt") for number in (2, 1)]
    config = TextData(train=[plain[0], weighted, plain[1]], context=4, cache_dir=folder / "cache")
    train = load_text(config).train
    assert isinstance(train, Mixture)
    assert column(train, "input_ids") == [[*b"one", 256], [*b"two", 0], [*b"ten", 0]]
    assert train.rows_per_epoch == 4
    assert train.epoch_order(0, 0, shuffle=False).tolist() == [0, 1, 2, 2]


def test_errors_of_a_weighted_source_name_it(folder: Path) -> None:
    missing, present = (WeightedPaths(paths=[str(folder / name)]) for name in ("chapter_3.txt", "chapter_10.txt"))
    with pytest.raises(DataError, match=r"data\.train\.1\.paths: there is no file .*chapter_3") as caught:
        load_text(TextData(train=["recipes:*.yaml", missing]))
    assert "chapter_2.txt" in caught.value.fix
    with pytest.raises(DataError, match=r"chapter_10\.txt is in data\.train and in data\.eval"):
        load_text(TextData(train=[present], eval=present.paths))
