"""Labels as numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from drumline.data import labels
from drumline.data.labels import Classes, as_numbers, column, find_classes
from drumline.errors import DataError


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([10, 9, 2], (2, 9, 10)),
        (["10", "9", "-2"], ("-2", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        ([True, False], ("false", "true")),
        ([2.0, 1, 2], (1, 2)),
    ],
)
def test_classes_are_sorted_and_numbers_as_numbers(values: list[Any], expected: tuple[Any, ...]) -> None:
    classes = find_classes(values, "label")
    assert classes.labels == expected
    assert [classes.number_of(value) for value in expected] == list(range(len(expected)))


def test_a_label_becomes_its_number_however_it_is_written() -> None:
    classes = Classes(["false", "true"])
    assert classes.number_of(True) == 1
    assert Classes([1, 2]).number_of(2.0) == 1
    one = classes.one("true")
    assert (one.dtype, one.shape, int(one)) == (torch.int64, (), 1)


def test_names_may_be_told_apart_from_the_numbers_in_the_rows() -> None:
    classes = Classes(range(3), ["zebra", "ant", "bee"])
    assert classes.number_of(0) == 0
    assert classes.describe() == "3 classes (zebra, ant, bee)"
    assert Classes(range(8)).describe() == "8 classes (0, 1, 2, 3, 4, and 3 more)"


def test_a_label_that_training_lacks_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"the label 'cow' is none of the 2 classes .*\(ant, bee\)"):
        Classes(["bee", "ant"]).number_of("cow")


@pytest.mark.parametrize(
    ("bad", "problem", "fix"),
    [
        (None, "None is no class", "correct the row"),
        ("", "'' is no class", "correct the row"),
        (0.5, "0.5 is no class", "task.kind=regression"),
        (math.nan, "nan is no class", "correct the row"),
        (["a"], r"\(a list of 1\) is no class", "task.kind=multi_label"),
    ],
)
def test_what_is_no_class_names_its_row(bad: Any, problem: str, fix: str) -> None:
    with pytest.raises(DataError, match=rf"data\.train label, row 2: .*{problem}\n  fix: .*{fix}"):
        find_classes(["a", "b", bad], "data.train label")


def test_a_column_that_tells_nothing_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="has 1 classes"):
        find_classes(["a", "a"], "label")
    with pytest.raises(DataError, match="only empty lists"):
        find_classes([[], "[]"], "label", lists=True)
    monkeypatch.setattr(labels, "MAX_CLASSES", 3)
    with pytest.raises(DataError, match="more than 3 different labels in its first 4 rows"):
        find_classes(range(100), "label")


def test_several_classes_a_row_from_lists_and_from_json_text() -> None:
    classes = find_classes([["b"], [], '["c", "a"]'], "label", lists=True)
    hot = classes.many_hot('["c", "a"]')
    assert (hot.dtype, hot.tolist()) == (torch.float32, [1.0, 0.0, 1.0])
    assert classes.many_hot([]).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(DataError, match=r"row 1: \(a text of 3 characters\) is no list"):
        find_classes([["b"], "a b"], "label", lists=True)


def test_numbers_to_predict() -> None:
    assert as_numbers("2.5").shape == () and float(as_numbers("2.5")) == 2.5
    assert as_numbers([1, 2.5]).tolist() == as_numbers("[1, 2.5]").tolist() == [1.0, 2.5]
    bad: Any
    for bad in ("x", None, True, math.inf, [1, "x"], "[1, 2", {}):
        with pytest.raises(DataError, match="no number or list of numbers"):
            as_numbers(bad)


class Records:
    """Ten records, handed out some at a time."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def __getitems__(self, rows: list[int]) -> list[dict[str, int]]:
        self.read.append(rows)
        return [{"n": row * row} for row in rows]


def test_a_column_is_read_in_pieces() -> None:
    records = Records()
    assert list(column(records, "n", size=4)) == [row * row for row in range(10)]
    assert [len(rows) for rows in records.read] == [4, 4, 2]
    assert list(column([{"n": 1}, {"n": 2}], "n")) == [1, 2]
