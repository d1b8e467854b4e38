"""Promise 2: each sample once, for any data-set size, world size and batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor
from torch.utils.data import IterableDataset

from drumline import Trainer
from tests.rank_pool import RankError, RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model, train

SIZES = (1, 2, 7, 10, 21)
BATCHES = (1, 4, 256)
EVALUATED = ((0, 4), (1, 1), (2, 256), (7, 4), (10, 1), (21, 4), (21, 256))
"""Sizes with batches: none, fewer than ranks, as many, uneven, in one batch and in many."""


def train_all(cases: list[Case]) -> list[list[int]]:
    """Ids that this rank trained on with weight, case by case."""
    return [weighted(case) for case in cases]


def weighted(case: Case) -> list[int]:
    from drumline.data.loader import LoaderOptions, RowLoader
    from drumline.data.order import Cut
    from drumline.data.source import as_source
    from drumline.data.windows import RowFeed
    from drumline.launcher.world import detect_world

    world, train_config = detect_world(), config_of(case).train
    assert train_config.global_batch is not None
    loader = RowLoader(as_source(MaskedRows(case.num_rows)), MaskedRegression([]), LoaderOptions())
    cut = Cut(train_config.global_batch, train_config.global_batch, world.rank, world.size)
    feed = RowFeed(loader, cut, 0, shuffle=True, needs_count=False)
    windows = list(feed.epoch(0, 0))
    assert all(window.micro_batches for window in windows)
    return [i for w in windows for m in w.micro_batches if m.weight for i in m.batch["id"].tolist()]


def evaluate_all(cases: list[Case]) -> list[tuple[list[int], dict[str, float]]]:
    """Ids that this rank evaluated, and the metrics, case by case."""
    answers = []
    for case in cases:
        seen: list[int] = []
        assert case.num_eval_rows is not None
        rows = MaskedRows(case.num_eval_rows)
        with Trainer(
            make_model(), config_of(case), MaskedRows(4), loss=MaskedRegression(seen), eval_data=rows
        ) as trainer:
            metrics = trainer.evaluate()
        answers.append((seen, metrics))
    return answers


@pytest.mark.parametrize("world", [1, 2, 3])
def test_training_reads_each_sample_once(ranks: RankPool, world: int) -> None:
    cases = [
        Case("unused", {"train": {"global_batch": batch, "epochs": 1}}, num_rows=size)
        for size in SIZES
        for batch in BATCHES
    ]
    by_rank = ranks.run(world, train_all, cases)
    for number, case in enumerate(cases):
        ids = Counter(i for answers in by_rank for i in answers[number])
        assert ids == Counter(range(case.num_rows)), case


def test_evaluation_is_exact(ranks: RankPool, tmp_path: Path) -> None:
    def cases(name: str) -> list[Case]:
        return [
            Case(
                str(tmp_path / f"{name}-{size}-{batch}"),
                {"train": {"global_batch": 4, "epochs": 1}, "evaluate": {"batch": batch}},
                num_eval_rows=size,
            )
            for size, batch in EVALUATED
        ]

    (alone,) = ranks.run(1, evaluate_all, cases("one"))
    for world in (2, 3):
        by_rank = ranks.run(world, evaluate_all, cases(f"w{world}"), timeout=60)
        for number, case in enumerate(cases("one")):
            assert case.num_eval_rows is not None
            ids = Counter(i for answers in by_rank for i in answers[number][0])
            assert ids == Counter(range(case.num_eval_rows)), case
            _, expected = alone[number]
            for answers in by_rank:
                metrics = answers[number][1]
                assert metrics["count"] == case.num_eval_rows
                assert metrics.get("close") == expected.get("close")
                assert metrics.get("loss", 0.0) == pytest.approx(expected.get("loss", 0.0), abs=1e-12)


def test_an_empty_training_set_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    case = Case(fresh(tmp_path), {"train": {"global_batch": 4, "epochs": 1}}, num_rows=0)
    with pytest.raises(RankError, match="empty") as caught:
        ranks.run(2, train, case)
    assert {error.type_name for error in caught.value.errors.values()} == {"DataError"}


def test_streams_of_unequal_length_end_together(ranks: RankPool, tmp_path: Path) -> None:
    answers = ranks.run(2, train_on_stream, fresh(tmp_path))
    assert answers[0][0] == answers[1][0] == 8
    assert Counter(answers[0][1] + answers[1][1]) == Counter(range(8))
    assert answers[0][2] == answers[1][2]


def train_on_stream(directory: str) -> tuple[int, list[int], list[float]]:
    """Shard 0 has 5 rows, shard 1 has 3 (Lightning #3325): two rows an update, one each."""
    case = Case(directory, {"train": {"global_batch": 2, "epochs": 1}})
    total, seen = 0, list[int]()
    task = MaskedRegression(seen)
    with Trainer(make_model(), config_of(case), UnevenStream(), loss=task) as trainer:
        for info in trainer.steps():
            total += info.samples
            trainer.log("mark", 1.0)
        weights = [float(p.detach().sum()) for p in trainer.model.parameters()]
    return total, list(dict.fromkeys(seen)), weights


class UnevenStream(IterableDataset[dict[str, Tensor]]):
    """Eight rows, of which the first of two shards has five."""

    def __init__(self, ids: range = range(8)) -> None:
        self._ids = ids

    def shard(self, num_shards: int, index: int) -> UnevenStream:
        assert num_shards == 2
        return UnevenStream(range(5) if index == 0 else range(5, 8))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        rows = MaskedRows(8)
        return (rows[i] for i in self._ids)


class PlainStream(IterableDataset[dict[str, Tensor]]):
    """A stream without a way to cut it."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        rows = MaskedRows(4)
        return (rows[i] for i in range(4))


def test_a_stream_that_cannot_be_cut_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="shard"):
        ranks.run(2, train_on_plain_stream, fresh(tmp_path))


def train_on_plain_stream(directory: str) -> None:
    case = Case(directory, {"train": {"global_batch": 2, "epochs": 1}})
    with Trainer(make_model(), config_of(case), PlainStream(), loss=MaskedRegression([])) as trainer:
        trainer.fit()
