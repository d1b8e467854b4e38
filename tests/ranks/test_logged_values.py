"""What is logged is a mean over all ranks, weighed by counts, for one small message a log line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from drumline import StepInfo, Trainer
from drumline.parallel.side_channel import StoreChannel
from drumline.parallel.strategy import Batch
from drumline.rundir import read_lines
from tests.rank_pool import RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model

Lines = list[Mapping[str, Any]]


class ThreeAndOne(IterableDataset[dict[str, Tensor]]):
    """Shard 0 of two has three rows of value 1, shard 1 has one of value 2."""

    def __init__(self, values: tuple[float, ...] = (1.0, 1.0, 1.0, 2.0)) -> None:
        self._values = values

    def shard(self, num_shards: int, index: int) -> ThreeAndOne:
        assert num_shards == 2
        return ThreeAndOne(self._values[:3] if index == 0 else self._values[3:])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return ({"x": torch.ones(4, dtype=torch.float64), "value": torch.tensor(value)} for value in self._values)


def value_of(model: nn.Module, batch: Batch) -> Tensor:
    value: Tensor = model(batch["x"]).mean() * 0 + batch["value"].mean()
    return value


def log_values(directory: str) -> Lines:
    """Train on ThreeAndOne; a callback logs the rank's own value too, with the weight of its rows."""
    case = Case(directory, {"train": {"global_batch": 6, "epochs": 1}})

    def log_own(trainer: Trainer, info: StepInfo) -> None:
        trainer.log("own", dist.get_rank() + 1, weight=3 if dist.get_rank() == 0 else 1)

    with Trainer(make_model(), config_of(case), ThreeAndOne(), loss=value_of, callbacks=[log_own]) as trainer:
        lines = [info.logged for info in trainer.steps()]
    assert all(line is not None for line in lines)
    return [line for line in lines if line is not None]


def test_the_loss_is_weighed_by_samples_over_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    for lines in ranks.run(2, log_values, directory):
        (line,) = lines
        assert line["loss"] == 1.25
    (record,) = read_lines(Path(directory) / "metrics.jsonl")
    assert record["loss"] == 1.25
    assert record["samples_per_s"] == pytest.approx(record["units_per_s"])


@contextmanager
def messages_counted() -> Iterator[Counter[str]]:
    """Tags of this rank's messages to the others, and its collectives as "all_reduce"."""
    counts: Counter[str] = Counter()
    exchange, all_reduce = StoreChannel.exchange, dist.all_reduce

    def counting_exchange(self: StoreChannel, tag: str, payload: Any = None, limit_s: float | None = None) -> list[Any]:
        counts[tag] += 1
        return exchange(self, tag, payload, limit_s)

    def counting_all_reduce(*args: Any, **options: Any) -> Any:
        counts["all_reduce"] += 1
        return all_reduce(*args, **options)

    StoreChannel.exchange, dist.all_reduce = counting_exchange, counting_all_reduce  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        StoreChannel.exchange, dist.all_reduce = exchange, all_reduce  # type: ignore[method-assign]


def count_messages(directory: str) -> tuple[Counter[str], int]:
    """Messages between the first update's end and the last's, of a run of eleven in one epoch."""
    case = Case(
        directory, {"train": {"global_batch": 4, "max_steps": 11}, "track": {"every": 10, "console": False}}, 60
    )
    rows = MaskedRows(case.num_rows)
    with Trainer(make_model(), config_of(case), rows, loss=MaskedRegression([])) as trainer:
        steps = trainer.steps()
        next(steps)
        with messages_counted() as counts:
            lines = [next(steps).logged for _ in range(10)]
        steps.close()  # type: ignore[attr-defined]
    return counts, sum(line is not None for line in lines)


def test_one_message_a_log_line_and_no_collective(ranks: RankPool, tmp_path: Path) -> None:
    for counts, _ in ranks.run(2, count_messages, fresh(tmp_path)):
        # Updates 10 and, as the last one, 11 are logged; each update reduces its gradients and agrees once.
        assert counts == {"update": 10, "log": 2, "all_reduce": 10}


def log_names(directory: str) -> Lines:
    """Rank 0 logs one name, rank 1 another, and only rank 1 in every second update."""
    case = Case(directory, {"train": {"global_batch": 4, "max_steps": 6}, "track": {"every": 3, "console": False}})

    def log_own(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == 0:
            trainer.log("zero", torch.tensor(float(info.step), requires_grad=True))
        elif info.step % 2:
            trainer.log("one", 10.0 * info.step)

    task = MaskedRegression([])
    with Trainer(make_model(), config_of(case), MaskedRows(37), loss=task, callbacks=[log_own]) as trainer:
        return [info.logged for info in trainer.steps() if info.logged is not None]


def test_any_rank_may_log_any_name(ranks: RankPool, tmp_path: Path) -> None:
    first, second = ranks.run(2, log_names, fresh(tmp_path))
    for lines in (first, second):
        # A callback comes after the line of its own update, so its value is in the next one.
        assert [line["zero"] for line in lines] == [1.5, 4.0]
        assert [line["one"] for line in lines] == [10.0, 40.0]
    assert [line["loss"] for line in first] == [line["loss"] for line in second]
