"""Batches on their way to a GPU: right under load, ahead of the work, and page-locked if asked. Run: pytest -m gpu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.data.loader import LoaderOptions, Piece, RowLoader
from drumline.data.order import Cut
from drumline.data.prefetch import DeviceFeed, on_devices
from drumline.data.seeds import ROWS
from drumline.data.source import as_source
from drumline.data.windows import RowFeed
from drumline.parallel.strategy import Batch, Loss
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

DEVICE = torch.device("cuda", 0)
WIDTH = 1 << 20
BUSY_CYCLES = 200_000_000
"""For torch.cuda._sleep: some 0.1 s of the device."""


class Wide(Dataset[dict[str, Any]]):
    """Row i is a million times i, 4 MiB."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.full((WIDTH,), float(row)), "row": row}


class CountAll:
    """A task that counts every row."""

    def count(self, batch: Batch) -> int:
        return len(batch["row"])

    def check(self, batch: Batch) -> None:
        pass

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        raise AssertionError("feeds do not run the model")

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        raise AssertionError("feeds do not run the model")


@contextmanager
def feed_of(size: int, cut: Cut, **options: Any) -> Iterator[DeviceFeed]:
    settings = {"num_workers": 2, "pin_memory": True, **options}
    loader = RowLoader(as_source(Wide(size)), CountAll(), LoaderOptions(**settings))
    feed = on_devices(RowFeed(loader, cut, 0, shuffle=False, needs_count=False), [DEVICE])
    assert isinstance(feed, DeviceFeed)
    try:
        yield feed
    finally:
        feed.close()


def right(batch: Batch) -> Tensor:
    """On the device: whether every value of the batch is its row's number."""
    found: Tensor = (batch["x"] == batch["row"].unsqueeze(1)).all()
    return found


@pytest.mark.parametrize("pin_memory", [True, False])
def test_values_are_right_while_the_device_is_busy(pin_memory: bool) -> None:
    """Each window is read late, behind work, while the next ones are copied and memory is used again and again."""
    a = torch.randn(2048, 2048, device=DEVICE)
    checks = []
    with feed_of(96, Cut(4, 2, 0, 1), pin_memory=pin_memory) as feed:
        windows = feed.epoch(0, 0)
        window = next(windows, None)
        seen = []
        while window is not None:
            window.ready()
            for _ in range(4):
                a = torch.tanh(a @ a)
            for micro_batch in window.micro_batches:
                assert micro_batch.batch["x"].device == DEVICE
                checks.append(right(micro_batch.batch))
                seen.append(micro_batch.batch["row"].clone())
            window = next(windows, None)  # what was read is let go while the device has not come to it
    assert bool(torch.stack(checks).all())
    assert torch.cat(seen).tolist() == list(range(96))


def test_a_window_is_copied_while_the_one_before_it_is_computed() -> None:
    with feed_of(8, Cut(4, 4, 0, 1)) as feed:
        windows = feed.epoch(0, 0)
        next(windows).ready()
        torch.cuda.synchronize(DEVICE)
        torch.cuda._sleep(20 * BUSY_CYCLES)
        following = next(windows)
        feed._streams[0].synchronize()
        busy = not torch.cuda.current_stream(DEVICE).query()
        following.ready()
        assert busy, "the copy has waited for the device's work"
        assert bool(right(following.micro_batches[0].batch))


def test_batches_of_an_evaluation_come_right_and_in_order() -> None:
    with feed_of(21, Cut(4, 4, 0, 1)) as feed:
        for _ in range(2):
            found = []
            for micro_batch in feed.evaluation():
                torch.cuda._sleep(BUSY_CYCLES // 10)
                assert bool(right(micro_batch.batch))
                found += micro_batch.batch["row"].tolist()
            assert found == list(range(21))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_page_locking_takes_effect(num_workers: int, pin_memory: bool) -> None:
    options = LoaderOptions(num_workers=num_workers, pin_memory=pin_memory)
    loader = RowLoader(as_source(Wide(2)), CountAll(), options)
    try:
        (batch,) = loader.read([Piece((ROWS, 0), [0, 1])])
        assert batch.batch["x"].is_pinned() == pin_memory
        assert not batch.batch["x"].is_shared()
    finally:
        loader.close()


def losses_with(folder: Path, **loader: Any) -> tuple[list[float], dict[str, float]]:
    """Losses of one epoch on the GPU, and its evaluation."""
    case = Case(str(folder / f"run-{len(list(folder.iterdir()))}"), {"train": {"global_batch": 8, "micro_batch": 3}})
    config = config_of(case, hardware={"device": "cuda"}, loader=loader)
    config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 2, "precision": "fp32"})})
    held_out = MaskedRows(11)
    task = MaskedRegression([])
    with Trainer(make_model(), config, MaskedRows(37), loss=task, eval_data=held_out) as trainer:
        losses = [info.logged["loss"] for info in trainer.steps() if info.logged is not None]
        return losses, trainer.evaluate()


def test_training_has_the_same_numbers_whatever_the_loader(tmp_path: Path) -> None:
    plain = losses_with(tmp_path, num_workers=0, pin_memory=False)
    assert losses_with(tmp_path, num_workers=2) == plain
    assert losses_with(tmp_path, num_workers=2, persistent_workers=False, prefetch_factor=1, pin_memory=False) == plain
