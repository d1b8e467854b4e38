from __future__ import annotations

import random

from drumline.infer.planning import length_counts, plan_window
from drumline.infer.records import Prepared


def rows(*lengths: int, first: int = 0, after: int = 0) -> list[Prepared | str]:
    return [Prepared(first + place, length, length + after) for place, length in enumerate(lengths)]


def test_the_longest_come_first_and_ties_keep_their_order() -> None:
    window = plan_window(2, 10, 5, rows(3, 7, 3, 7, first=10), tokens=14, max_rows=10)
    assert [batch.rows for batch in window.batches] == [(11, 13), (10, 12)]
    assert [(batch.number, batch.width) for batch in window.batches] == [(5, 7), (6, 3)]
    assert (window.number, window.first_row, window.num_rows) == (2, 10, 4)


def test_no_batch_is_over_the_budget_but_one_of_a_single_row() -> None:
    window = plan_window(0, 0, 0, rows(100, 5, 5, 5), tokens=12, max_rows=10)
    assert [batch.rows for batch in window.batches] == [(0,), (1, 2), (3,)]


def test_what_is_written_after_a_row_counts_but_is_no_padding() -> None:
    window = plan_window(0, 0, 0, rows(5, 5, 5, after=5), tokens=20, max_rows=10)
    assert [(batch.rows, batch.width) for batch in window.batches] == [((0, 1), 5), ((2,), 5)]


def test_the_largest_size_counts_even_where_it_is_not_the_longest_row() -> None:
    prepared = [Prepared(0, 9, 10), Prepared(1, 8, 30), Prepared(2, 7, 8)]
    window = plan_window(0, 0, 0, prepared, tokens=60, max_rows=10)
    assert [batch.rows for batch in window.batches] == [(0, 1), (2,)]


def test_a_batch_has_at_most_so_many_rows() -> None:
    window = plan_window(0, 0, 0, rows(*[1] * 7), tokens=1000, max_rows=3)
    assert [len(batch.rows) for batch in window.batches] == [3, 3, 1]


def test_rows_with_a_problem_are_in_no_batch() -> None:
    window = plan_window(0, 4, 0, ["too long", Prepared(5, 2, 2), "torn"], tokens=10, max_rows=3)
    assert [batch.rows for batch in window.batches] == [(5,)]
    assert window.problems == {4: "too long", 6: "torn"}
    assert plan_window(0, 0, 9, ["bad"], tokens=10, max_rows=3).batches == ()


def test_each_row_is_in_one_batch_and_the_plan_is_the_same_again() -> None:
    chance = random.Random(0)
    prepared = rows(*[chance.randint(0, 300) for _ in range(500)], after=3)
    window = plan_window(0, 0, 0, prepared, tokens=1024, max_rows=32)
    assert sorted(row for batch in window.batches for row in batch.rows) == list(range(500))
    assert window == plan_window(0, 0, 0, list(prepared), tokens=1024, max_rows=32)
    assert all(len(batch.rows) * (batch.width + 3) <= 1024 for batch in window.batches)


def test_lengths_are_counted_to_powers_of_two() -> None:
    assert length_counts([0, 1, 2, 3, 4, 5, 8, 9]) == ((1, 2), (2, 1), (4, 2), (8, 2), (16, 1))
