from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from drumline.data.order import (
    Cut,
    MicroRows,
    Rows,
    balanced,
    epoch_order,
    epoch_windows,
    evaluation_batches,
    weighted,
    window_rows,
)

SIZES = (1, 2, 7, 10, 21)
WORLDS = (1, 2, 3, 4, 5)
BATCHES = (1, 3, 4, 256)
MICROS = (1, 2, 5, 256)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 2, 6, 7, 20])
def test_balanced_cuts_into_contiguous_ranges_that_differ_by_at_most_one(length: int, parts: int) -> None:
    ranges = balanced(length, parts)
    sizes = [len(part) for part in ranges]
    assert [i for part in ranges for i in part] == list(range(length))
    assert len(ranges) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("world", WORLDS)
def test_an_epoch_is_covered_exactly(num_rows: int, world: int) -> None:
    order = epoch_order(num_rows, 3, 0, shuffle=True)
    for batch, micro in product(BATCHES, MICROS):
        shards = [list(epoch_windows(order, Cut(batch, micro, shard, world))) for shard in range(world)]
        num_windows = -(-num_rows // batch)
        assert {len(windows) for windows in shards} == {num_windows}
        for k in range(num_windows):
            check_window(order[k * batch : (k + 1) * batch], [windows[k] for windows in shards], micro)


def check_window(window: Rows, by_shard: list[list[MicroRows]], micro: int) -> None:
    """All rows once and in order, balanced over the shards, in micro-batches that are balanced too."""
    trained = [np.concatenate([p.rows for p in pieces if p.weight] or [window[:0]]) for pieces in by_shard]
    assert np.concatenate(trained).tolist() == window.tolist()
    shares = [len(rows) for rows in trained]
    assert max(shares) - min(shares) <= 1
    for pieces, share in zip(by_shard, shares, strict=True):
        sizes = [len(piece.rows) for piece in pieces]
        assert 1 <= min(sizes) <= max(sizes) <= micro
        assert max(sizes) - min(sizes) <= 1
        assert {piece.weight for piece in pieces} == {1 if share else 0}


def test_a_shard_without_rows_takes_part_once_on_the_first_shards_first_micro_batch() -> None:
    window = np.array([8, 6, 4])
    first, *_, last = (window_rows(window, Cut(3, 1, shard, 4)) for shard in range(4))
    assert [piece.rows.tolist() for piece in first] == [[8]]
    assert [(piece.rows.tolist(), piece.weight) for piece in last] == [([8], 0)]
    stand_in = window_rows(np.arange(5), Cut(5, 2, 7, 8))
    assert len(stand_in) == 1
    assert stand_in[0].weight == 0


@pytest.mark.parametrize("weights", [(3.0, 1.0), (1.0, 1.0, 1.0), (0.1, 0.2, 0.7), (1e-9, 1.0, 1.0), (5.0,)])
def test_weighted_cuts_in_proportion_to_less_than_a_row(weights: tuple[float, ...]) -> None:
    for length in range(60):
        ranges = weighted(length, weights)
        assert [i for part in ranges for i in part] == list(range(length))
        for part, weight in zip(ranges, weights, strict=True):
            assert abs(len(part) - length * weight / sum(weights)) < 1
        if len(set(weights)) == 1:
            assert ranges == balanced(length, len(weights))


def test_the_largest_remainder_gets_what_is_left_and_the_first_of_equals() -> None:
    assert [len(part) for part in weighted(10, (3, 1))] == [8, 2]
    assert [len(part) for part in weighted(10, (1, 1, 2))] == [3, 2, 5]
    assert [len(part) for part in weighted(5, (10, 33, 57))] == [0, 2, 3]
    assert weighted(7, (6.0, 2.0)) == weighted(7, (3.0, 1.0))


@pytest.mark.parametrize("weights", [(3.0, 1.0), (1.0, 100.0)])
def test_shards_of_unlike_shares_cover_an_epoch_in_windows_of_the_same_rows(weights: tuple[float, ...]) -> None:
    order = epoch_order(21, 3, 0, shuffle=True)
    shards = [list(epoch_windows(order, Cut(8, 2, shard, 2, weights))) for shard in range(2)]
    for k, pair in enumerate(zip(*shards, strict=True)):
        window = order[8 * k : 8 * k + 8]
        trained = [piece.rows.tolist() for pieces in pair for piece in pieces if piece.weight]
        assert [row for rows in trained for row in rows] == window.tolist()
        assert max(map(len, trained)) <= 2
        parts = weighted(len(window), weights)
        for pieces, part in zip(pair, parts, strict=True):
            if not part:  # takes part on a single row, though the other has many
                first = next(window[each.start] for each in parts if each)
                assert [(piece.rows.tolist(), piece.weight) for piece in pieces] == [([first], 0)]


def test_windows_from_k_on_are_the_tail() -> None:
    order, cut = epoch_order(21, 5, 2, shuffle=True), Cut(4, 1, 1, 3)

    def as_lists(start: int) -> list[list[tuple[list[int], int]]]:
        return [[(p.rows.tolist(), p.weight) for p in window] for window in epoch_windows(order, cut, start)]

    whole = as_lists(0)
    assert len(whole) == 6
    for start in range(7):
        assert as_lists(start) == whole[start:]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    orders = {key: epoch_order(50, *key, shuffle=True).tolist() for key in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    assert epoch_order(50, 0, 1, shuffle=True).tolist() == orders[0, 1]
    assert epoch_order(50, 0, 1, shuffle=False).tolist() == list(range(50))


@pytest.mark.parametrize("num_rows", (0, *SIZES))
@pytest.mark.parametrize("world", WORLDS)
def test_an_evaluation_has_each_row_once(num_rows: int, world: int) -> None:
    for micro in BATCHES:
        cuts = [Cut(8, micro, shard, world) for shard in range(world)]
        batches = [batch for cut in cuts for batch in evaluation_batches(num_rows, cut)]
        assert Counter(row for batch in batches for row in batch) == Counter(range(num_rows))
        assert all(1 <= len(batch) <= micro for batch in batches)
