from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.errors import DataError
from drumline.infer import rows_in_form
from drumline.infer.ledger import Ledger
from drumline.infer.records import Prepared, Row
from drumline.infer.rows_in_form import RowsInForm
from tests.unit.infer.toy import Toy, begin


class Counting(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        self.asked += [row.number for row in rows]
        return super().prepare(rows)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    rows: list[dict[str, Any]] = [
        {"text": "abcd"},
        {"no": 1},
        {"text": "x"},
        {"text": "abc"},
        {"text": "\ud800"},
        {"text": "abcde"},
    ]
    return Ledger(begin(tmp_path / "out.jsonl", rows)[0].path, "me")


def test_a_window_is_made_once_and_its_rows_handed_out_once(ledger: Ledger) -> None:
    toy = Counting()
    rows = RowsInForm(ledger, toy)
    window = rows.window(0, 6)
    assert rows.window(0, 6) is window
    assert toy.asked == [0, 1, 2, 3, 5]  # not what could not be read
    assert [row if isinstance(row, str) else row.payload for row in window] == [
        "abcd",
        "the row has no field 'text'",
        "x",
        "abc",
        "it has half a character, U+D800",
        "abcde",
    ]
    assert [row.payload for row in rows.of([5, 0]).values()] == ["abcde", "abcd"]
    assert toy.asked == [0, 1, 2, 3, 5]
    assert [row.payload for row in rows.of([3, 2]).values()] == ["abc", "x"]
    assert toy.asked == [0, 1, 2, 3, 5]
    rows.of([3, 2])
    assert toy.asked == [0, 1, 2, 3, 5, 3, 2]
    ledger.close()


def test_only_so_many_tokens_are_kept(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_in_form, "KEPT_TOKENS", 8)
    monkeypatch.setattr(rows_in_form, "ONE_TOKEN", 1)
    toy = Counting()
    rows = RowsInForm(ledger, toy)
    window = rows.window(0, 6)
    assert [row.payload for row in window if isinstance(row, Prepared)] == ["abcd", "x", "abc", None]
    rows.window(5, 1)  # its five tokens take the room of the others
    del toy.asked[:]
    rows.of([5])
    assert toy.asked == []
    rows.of([0])
    assert toy.asked == [0]
    ledger.close()


def test_of_rows_that_were_not_kept_the_largest_and_some_others_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_in_form, "KEPT_TOKENS", 10)
    monkeypatch.setattr(rows_in_form, "MADE_AGAIN", 2)
    ledger = Ledger(begin(tmp_path / "many.jsonl", ["x" * (2 + n) for n in range(12)])[0].path, "me")
    toy = Counting()
    rows = RowsInForm(ledger, toy)
    window = rows.window(0, 12)
    del toy.asked[:]
    shown = rows.to_show([*window, "no row"])
    assert [row.number for row in shown] == list(range(12))
    assert [row.number for row in shown if row.payload is not None] == [0, 1, 2, 3, 7, 10, 11]
    assert all(row.payload in (None, "x" * row.length) for row in shown)
    assert sorted(toy.asked) == [3, 7, 10, 11]
    ledger.close()


def test_what_a_row_takes_while_it_is_kept() -> None:
    pixels = np.zeros(40_000, dtype=np.uint8)
    rows = [Prepared(0, 7, 9, "x"), Prepared(0, 1, 1, {"a": 1}), Prepared(0, 1, 1, pixels)]
    assert [rows_in_form.room_of(row) for row in rows] == [7, rows_in_form.ONE_TOKEN, 1000]


def test_a_row_that_cannot_be_prepared_any_more_is_said(ledger: Ledger) -> None:
    with pytest.raises(DataError, match="row 1 was planned with another model or task: now the row has no field"):
        RowsInForm(ledger, Toy()).of([0, 1])
    ledger.close()
