from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from drumline.config.data import LoaderSettings
from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.data.source import as_source
from drumline.data.stream import StridedStream
from drumline.engine import feeds
from drumline.engine.feeds import evaluation_feed, with_loader
from drumline.hardware.host import Space
from drumline.launcher.world import World
from tests.unit.data.counting import CountUnits, Rows

ROWS = [float(i) for i in range(8)]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def settings(data: Any, num_workers: int | None = None, **train: Any) -> tuple[Any, ...]:
    """Global batch, micro-batch, order and loader processes that come of it."""
    config = RunConfig(train=TrainConfig(**train), loader=LoaderSettings(num_workers=num_workers))
    found = with_loader(config, as_source(data))
    return found.train.global_batch, found.train.micro_batch, found.train.shuffle, found.loader.num_workers


def test_a_data_set_changes_nothing() -> None:
    assert settings(ROWS, global_batch=4) == (4, "auto", True, None)
    assert settings(ROWS, 3, global_batch=4, micro_batch=2) == (4, 2, True, 3)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loaders_order_is_kept(shuffle: bool) -> None:
    assert settings(DataLoader(ROWS, 2, shuffle=shuffle))[2] == shuffle  # type: ignore[arg-type]


def test_a_loaders_batch_size_is_global_or_else_the_micro_batch() -> None:
    loader: DataLoader[float] = DataLoader(ROWS, 2)  # type: ignore[arg-type]
    assert settings(loader)[:2] == (2, "auto")
    assert settings(loader, global_batch=8)[:2] == (8, 2)
    assert settings(loader, global_batch=8, micro_batch=4)[:2] == (8, 4)
    assert settings(loader, global_batch=2)[:2] == (2, "auto")
    assert settings(loader, batch_size_per_gpu=3)[:2] == (None, "auto")


def test_loader_processes_stated_in_the_config_go_before_the_loaders() -> None:
    loader: DataLoader[float] = DataLoader(ROWS, 2, num_workers=2)  # type: ignore[arg-type]
    assert settings(loader)[3] == 2
    assert settings(loader, 1)[3] == 1
    assert settings(loader, 0)[3] == 0


def test_a_stream_that_cannot_be_cut_is_read_by_the_process_itself_unless_asked() -> None:
    assert settings(Stream())[3] == 0
    assert settings(Stream(), 2)[3] == 2
    assert settings(DataLoader(Stream(), 2, num_workers=1))[3] == 1
    assert settings(StridedStream(Stream()))[3] is None


@pytest.mark.parametrize(("free_kib", "num_workers"), [(10_000, 2), (110, 1), (60, 0)])
def test_a_feed_of_its_own_has_as_many_loader_processes_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free_kib: int, num_workers: int
) -> None:
    """Prediction makes one in the middle of a run."""
    monkeypatch.setattr(feeds, "space", lambda path: Space(free_kib << 10, free_kib << 10))
    plan: Any = SimpleNamespace(global_batch=4, micro_batch=4, num_workers=2, num_shards=1, device="cpu")
    config = RunConfig(train=TrainConfig(global_batch=4))
    mine = psutil.Process()
    before = set(mine.children())
    with torch.random.fork_rng():
        feed = evaluation_feed(as_source(Rows([1] * 12)), CountUnits(), config, plan, World())
        try:
            assert [m.batch["row"].tolist() for m in feed.evaluation()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
            assert len(set(mine.children()) - before) == num_workers
        finally:
            feed.close()
    assert ("--shm-size" in caplog.text) == (num_workers < 2)
