"""Rows with the same text."""

from __future__ import annotations

import pytest

from drumline.data.duplicates import Hashes, Same, normalised


def hashes(*texts: str, rows: list[int] | None = None) -> Hashes:
    found = Hashes()
    for row, text in zip(rows or range(len(texts)), texts, strict=True):
        found.add(row, text)
    return found


def test_rows_that_come_again_are_named_with_the_first_of_them() -> None:
    assert hashes("a", "b", "a", "c", "b", "a").repeated() == Same(3, ((2, 0), (4, 1), (5, 0)))
    assert hashes("a", "b").repeated() == Same(0)
    assert hashes().repeated() == Same(0)


def test_the_first_is_the_one_with_the_lowest_number_whatever_was_looked_at_first() -> None:
    assert hashes("a", "a", "a", rows=[30, 10, 20]).repeated() == Same(2, ((20, 10), (30, 10)))


def test_only_a_few_rows_are_named() -> None:
    found = hashes(*["a"] * 100).repeated()
    assert found == Same(99, ((1, 0), (2, 0), (3, 0)))


def test_rows_that_are_in_another_data_set_too() -> None:
    train, held_out = hashes("a", "b", "a", "c"), hashes("x", "a", "c", "a")
    assert held_out.found_in(train) == Same(3, ((1, 0), (2, 3), (3, 0)))
    assert hashes("x").found_in(train) == Same(0)
    assert hashes().found_in(train) == Same(0)
    assert held_out.found_in(hashes()) == Same(0)


def test_texts_with_several_marks() -> None:
    assert hashes("a", "b", "a", "b").contradicted(hashes("1", "2", "1", "3")) == 1
    assert hashes("a", "a").contradicted(hashes("1", "1")) == 0
    assert hashes().contradicted(hashes()) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Call  me\tIshmael.\n", "call me ishmael."),
        ("STRASSE", "straße"),
        ("café", "cafe\u0301"),
        ("ﬁne №\u2003\uff12", "fine No 2"),
        ("a\u00a0b\u3000c", "a b c"),
    ],
)
def test_texts_that_differ_in_what_seldom_matters_are_alike(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_other_texts_are_not_alike() -> None:
    assert len({normalised(text) for text in ("a b", "ab", "a, b", "ä b", "a b!")}) == 5


def test_half_a_character_is_hashed_too() -> None:
    assert hashes("\ud800", "\ud800", "\ud801").repeated().num_rows == 1
