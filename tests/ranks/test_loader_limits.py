"""Loaders that do not fit: every rank goes on with what it has room for, and streams are cut alike by all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Trainer
from drumline.data.stream import StridedStream
from drumline.engine import feeds
from drumline.hardware.host import Space
from drumline.rundir import read_lines
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model

KIB = 1024


class Stream(torch.utils.data.IterableDataset[dict[str, Tensor]]):
    """The masked rows one after the other."""

    def __iter__(self) -> Any:
        rows = MaskedRows(37)
        return (rows[row] for row in range(37))


def train_with(directory: str, kind: str, free_kib: list[int]) -> tuple[list[int], int, int]:
    """One epoch where rank r finds so much free shared memory; rows trained on, and processes and batches agreed on."""
    from drumline.launcher.world import detect_world

    free = free_kib[detect_world().rank] * KIB
    seen: list[int] = []
    data: Any = StridedStream(Stream()) if kind == "stream" else MaskedRows(37)
    case = Case(directory, {"train": {"global_batch": 8, "epochs": 1}})
    loader = {"num_workers": 2, "prefetch_factor": 4}
    patch = pytest.MonkeyPatch()
    patch.setattr(feeds, "space", lambda path: Space(free, free))
    try:
        with Trainer(make_model(), config_of(case, loader=loader), data, loss=MaskedRegression(seen)) as trainer:
            options = trainer._run.feed._reader._options if kind == "stream" else None  # type: ignore[attr-defined]
            options = options or trainer._run.feed._loader._reader._options  # type: ignore[attr-defined]
            trainer.fit()
    finally:
        patch.undo()
    return list(dict.fromkeys(seen)), options.num_workers, options.prefetch_factor


def test_ranks_agree_on_the_loader_processes_of_a_stream(ranks: RankPool, tmp_path: Path) -> None:
    """Rank 1 has room for one process; with two on rank 0 rows would be lost, and others come twice."""
    answers = ranks.run(2, train_with, fresh(tmp_path), "stream", [10_000, 260], timeout=60)
    assert [answer[1] for answer in answers] == [1, 1]
    assert Counter(row for answer in answers for row in answer[0]) == Counter(range(37))


def test_ranks_with_rows_by_number_need_not_agree(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    answers = ranks.run(2, train_with, directory, "map", [450, 10_000], timeout=60)
    assert [answer[1:] for answer in answers] == [(2, 2), (2, 4)]
    assert Counter(row for answer in answers for row in answer[0]) == Counter(range(37))
    (event,) = [line for line in read_lines(Path(directory) / "events.jsonl") if line["event"] == "loader"]
    assert event["num_workers"] == [2] and event["prefetch_factor"] == [2]
    assert "--shm-size=1g" in event["message"] and "2 ranks x num_workers=2" in event["message"]


def test_no_event_where_all_is_as_asked(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    ranks.run(2, train_with, directory, "map", [10_000, 10_000], timeout=60)
    assert "loader" not in [line["event"] for line in read_lines(Path(directory) / "events.jsonl")]


class TornRows(MaskedRows):
    """Row 21 cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index == 21:
            raise ValueError("torn")
        return super().__getitem__(index)


def train_on_torn_rows(directory: str, num_workers: int) -> None:
    case = Case(directory, {"train": {"global_batch": 8, "epochs": 1, "shuffle": False}})
    sections = {"loader": {"num_workers": num_workers}}
    model: nn.Module = make_model()
    with Trainer(model, config_of(case, **sections), TornRows(37), loss=MaskedRegression([])) as trainer:
        trainer.fit()


def test_a_row_that_cannot_be_read_ends_all_ranks_and_is_named(ranks: RankPool, tmp_path: Path) -> None:
    """Row 21 is in rank 1's part of the third update."""
    errors = failures_of(ranks, 2, train_on_torn_rows, fresh(tmp_path), 1)
    assert errors[1].name == "ValueError"
    assert "raised while reading row 21 of the data set" in errors[1].message
    assert errors[0].name == "PeerFailed" and "row 21 of the data set" in errors[0].message
