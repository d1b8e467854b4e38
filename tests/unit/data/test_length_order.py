"""Updates of rows of similar length."""

from __future__ import annotations

import numpy as np
import pytest

from drumline.data.length_order import ByLength, length_order
from drumline.data.mixture import Mixture
from drumline.data.source import as_source

LENGTHS = np.random.default_rng(1).integers(1, 500, 1003)


class Texts:
    """A data set of numbers with lengths."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> int:
        return int(self.lengths[index])


@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17, 1003])
def test_each_row_comes_once(num_rows: int) -> None:
    order = length_order(LENGTHS[:num_rows], 1, 0, 16, shuffle=True)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(num_rows))


def test_rows_of_a_window_are_alike_and_from_long_to_short() -> None:
    order = length_order(LENGTHS, 1, 0, 16, shuffle=True)
    windows = [LENGTHS[order[start : start + 16]] for start in range(0, len(order), 16)]
    padded = sum(int(window.max()) * len(window) for window in windows)
    assert padded < 1.1 * LENGTHS.sum(), "in random order twice as many"
    assert all((np.diff(window) <= 0).all() for window in windows)
    firsts = [int(window[0]) for window in windows]
    assert firsts not in (sorted(firsts), sorted(firsts, reverse=True))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        found: list[int] = length_order(LENGTHS, seed, epoch, 16, shuffle=True).tolist()
        return found

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    first, second = ({frozenset(each[i : i + 16]) for i in range(0, 992, 16)} for each in (order(1, 0), order(1, 1)))
    assert len(first & second) < 3, "each epoch groups rows anew"


def test_rows_of_one_length_are_shuffled() -> None:
    order = length_order([7] * 100, 0, 0, 10, shuffle=True)
    assert sorted(order[:10].tolist()) != list(range(order[:10].min(), order[:10].min() + 10))


def test_without_shuffle_rows_come_as_they_are() -> None:
    assert length_order(LENGTHS, 0, 3, 16, shuffle=False).tolist() == list(range(1003))
    assert as_source(ByLength(Texts(LENGTHS), 16)).epoch_order(0, 3, shuffle=False).tolist() == list(range(1003))


def test_a_data_set_brings_its_order_along() -> None:
    source = as_source(ByLength(Texts(LENGTHS), 16))
    order = source.epoch_order(5, 2, shuffle=True)
    assert source.rows_per_epoch == 1003
    assert sorted(order.tolist()) == list(range(1003))
    window = LENGTHS[order[:16]]
    assert window.max() - window.min() < 60
    assert source.rows[3] == LENGTHS[3]
    assert source.rows.__getitems__([3, 1]) == [LENGTHS[3], LENGTHS[1]]  # type: ignore[attr-defined]


def test_a_mixture_keeps_its_weights() -> None:
    parts = [(Texts(LENGTHS[:10]), 2.0), (Texts(LENGTHS[10:50]), 0.5)]
    source = as_source(ByLength(Mixture(parts), 8))  # type: ignore[arg-type]
    order = source.epoch_order(0, 0, shuffle=True)
    assert len(order) == source.rows_per_epoch == 40
    assert np.bincount(order, minlength=50)[:10].tolist() == [2] * 10
    assert set(np.bincount(order, minlength=50)[10:].tolist()) == {0, 1}
    sizes = LENGTHS[order]
    assert all((np.diff(sizes[start : start + 8]) <= 0).all() for start in range(0, 40, 8))
