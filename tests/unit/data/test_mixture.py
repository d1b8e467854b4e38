"""How often and when the rows of several sources come."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import TrainConfig, Trainer
from drumline.config.data import LoaderSettings, WeightedPaths
from drumline.config.schema import RunConfig, TrackConfig
from drumline.data.mixture import Mixture, mixed, sources_of
from drumline.data.order import epoch_order
from drumline.data.source import as_source


class Letters(Dataset[str]):
    def __init__(self, letters: str) -> None:
        self.letters = letters

    def __len__(self) -> int:
        return len(self.letters)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self.letters):
            raise IndexError(index)
        return self.letters[index]


class AtOnce(Letters):
    calls: list[list[int]]

    def __getitems__(self, indexes: Sequence[int]) -> list[str]:
        self.calls.append(list(indexes))
        return [self.letters[index] for index in indexes]


def mixture(*parts: tuple[int, float]) -> Mixture:
    return Mixture([(Letters("x" * size), weight) for size, weight in parts])


CASES = [
    [(7, 1.0)],
    [(7, 2.0), (5, 1.0)],
    [(6, 0.5), (5, 1.0)],
    [(7, 0.5), (9, 1 / 3), (4, 2.5)],
    [(100, 0.07), (10, 0.1)],
    [(3, 0.01), (1, 1.0), (2, 7.25)],
]


@pytest.mark.parametrize("parts", CASES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_row_comes_floor_or_ceil_of_the_weight_times_an_epoch(
    parts: list[tuple[int, float]], shuffle: bool
) -> None:
    rows = mixture(*parts)
    for epoch in range(12):
        order = rows.epoch_order(3, epoch, shuffle=shuffle)
        assert order.dtype == np.int64
        assert len(order) == rows.rows_per_epoch
        counts = np.bincount(order, minlength=len(rows))
        start = 0
        for size, weight in parts:
            part = counts[start : start + size]
            assert set(part.tolist()) <= {int(weight), int(np.ceil(weight))}
            assert size * weight <= part.sum() + 1e-9 <= max(1, size * weight) + 1
            start += size


@pytest.mark.parametrize("parts", CASES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_over_all_epochs_together_no_row_is_ahead_of_another_of_its_part(
    parts: list[tuple[int, float]], shuffle: bool
) -> None:
    rows = mixture(*parts)
    total = np.zeros(len(rows), dtype=int)
    for epoch in range(20):
        total += np.bincount(rows.epoch_order(0, epoch, shuffle=shuffle), minlength=len(rows))
        start = 0
        for size, _ in parts:
            part = total[start : start + size]
            assert part.max() - part.min() <= 1
            start += size


@pytest.mark.parametrize(("size", "weight", "epochs"), [(8, 0.5, 2), (9, 1 / 3, 3), (100, 0.01, 100), (10, 0.3, 10)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_over_one_round_each_row_comes_once(size: int, weight: float, epochs: int, shuffle: bool) -> None:
    """Of weight 0.3: over 10 epochs, which are three rounds, each row three times."""
    rows = mixture((size, weight))
    for first in (0, epochs, 5 * epochs):
        seen = np.concatenate([rows.epoch_order(1, first + epoch, shuffle=shuffle) for epoch in range(epochs)])
        assert set(np.bincount(seen, minlength=size).tolist()) == {round(weight * epochs)}


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    rows, again = mixture(*CASES[3]), pickle.loads(pickle.dumps(mixture(*CASES[3])))
    backwards = [again.epoch_order(5, epoch, shuffle=True).tolist() for epoch in reversed(range(6))]
    orders = [rows.epoch_order(5, epoch, shuffle=True).tolist() for epoch in range(6)]
    assert orders == backwards[::-1]
    assert all(one != other for one, other in pairwise(orders))
    assert orders[0] != rows.epoch_order(6, 0, shuffle=True).tolist()


def test_halves_are_drawn_by_the_seed_and_differently_in_each_part() -> None:
    def half(seed: int, part: int) -> set[int]:
        order = mixture((40, 0.5), (40, 0.5)).epoch_order(seed, 0, shuffle=True)
        return {row % 40 for row in order.tolist() if row // 40 == part}

    assert len(half(0, 0)) == 20
    assert half(0, 0) != half(1, 0)
    assert half(0, 0) != half(0, 1)


def test_parts_are_mixed_with_each_other() -> None:
    order = mixture((50, 1.0), (50, 1.0)).epoch_order(0, 0, shuffle=True)
    assert 10 < sum(row < 50 for row in order[:50].tolist()) < 40


def test_without_shuffling_parts_follow_each_other_and_a_half_goes_on_where_it_stopped() -> None:
    rows = mixture((2, 2.0), (4, 0.5))
    assert rows.epoch_order(0, 0, shuffle=False).tolist() == [0, 1, 0, 1, 2, 3]
    assert rows.epoch_order(0, 1, shuffle=False).tolist() == [0, 1, 0, 1, 4, 5]
    assert rows.epoch_order(0, 2, shuffle=False).tolist() == [0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize("shuffle", [True, False])
def test_one_part_of_weight_one_is_ordered_as_any_data_set_is(shuffle: bool) -> None:
    expected = epoch_order(7, 3, 2, shuffle=shuffle).tolist()
    assert mixture((7, 1.0)).epoch_order(3, 2, shuffle=shuffle).tolist() == expected


def test_rows_are_those_of_the_parts() -> None:
    rows = Mixture([(Letters("ab"), 1.0), (Letters(""), 1.0), (Letters("cde"), 2.0)])
    assert [rows[index] for index in range(len(rows))] == list("abcde")
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"row {index} of 5"):
            rows[index]
    assert rows.rows_per_epoch == 8
    assert Counter(rows[row] for row in rows.epoch_order(0, 0, shuffle=True).tolist()) == Counter("ab" + "cde" * 2)


def test_rows_of_one_part_are_read_at_once_where_it_can() -> None:
    fast = AtOnce("abc")
    fast.calls = []
    rows = Mixture([(fast, 1.0), (Letters("de"), 1.0)])
    assert rows.__getitems__([4, 2, 0, 3, 2]) == list("ecadc")
    assert fast.calls == [[2, 0, 2]]


def test_a_source_takes_the_mixtures_order() -> None:
    rows = mixture((4, 0.5), (3, 2.0))
    source = as_source(rows)
    assert (source.num_rows, source.rows_per_epoch) == (7, 8)
    assert source.epoch_order(1, 2, shuffle=True).tolist() == rows.epoch_order(1, 2, shuffle=True).tolist()
    plain = as_source([1, 2, 3])
    assert plain.rows_per_epoch == 3
    assert plain.epoch_order(1, 2, shuffle=True).tolist() == epoch_order(3, 1, 2, shuffle=True).tolist()


def test_a_single_source_of_weight_one_needs_no_mixture() -> None:
    only: Any = Letters("ab")
    assert mixed([(only, 1.0)]) is only
    assert isinstance(mixed([(only, 0.5)]), Mixture)
    assert isinstance(mixed([(only, 1.0), (only, 1.0)]), Mixture)


def test_plain_paths_are_one_source_and_each_section_is_another() -> None:
    found = sources_of(["a", WeightedPaths(paths=["b", "c"], weight=0.5), "d"], "data.train")
    assert [tuple(source) for source in found] == [
        (["a", "d"], 1.0, "data.train"),
        (["b", "c"], 0.5, "data.train.1.paths"),
    ]
    assert [source.paths for source in sources_of([WeightedPaths(paths=["b"])], "data.train")] == [["b"]]


class Numbers(Dataset[Tensor]):
    """Rows first to first + size - 1, and which of them were read."""

    def __init__(self, first: int, size: int, read: list[int]) -> None:
        self.first, self.size, self.read = first, size, read

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        self.read.append(self.first + index)
        return torch.tensor([float(index)])


def test_a_run_reads_each_row_as_often_as_its_weight_says(tmp_path: Path) -> None:
    read: list[int] = []
    data = Mixture([(Numbers(0, 6, read), 0.5), (Numbers(100, 3, read), 2.0)])
    train = TrainConfig(global_batch=4, epochs=2, lr=0.01)
    config = RunConfig(
        run_dir=tmp_path / "run", train=train, loader=LoaderSettings(num_workers=0), track=TrackConfig(console=False)
    )
    with Trainer(nn.Linear(1, 1), config, data, loss=lambda model, batch: model(batch).square().mean()) as trainer:
        result = trainer.fit()
    assert result.steps == 6, "9 rows an epoch are 3 updates"
    assert Counter(read) == {**dict.fromkeys(range(6), 1), **dict.fromkeys(range(100, 103), 4)}
