from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from drumline import Trainer
from drumline.errors import ConfigError, RunDirExists
from drumline.parallel.strategy import Batch
from tests.unit.engine.training import (
    config_of,
    make_model,
    rows,
    squared_error,
    trainer_of,
)


class Sizes:
    """A loss that notes the batches it gets."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.seen.append(batch[1].flatten().tolist())
        return squared_error(model, batch)


def test_a_data_loaders_batch_size_is_the_global_batch(tmp_path: Path) -> None:
    loss, data = Sizes(), rows(5)
    with trainer_of(tmp_path / "run", DataLoader(data, 2), loss=loss, train={"global_batch": "unset"}) as trainer:
        assert trainer.fit().steps == 3
    targets = data.tensors[1].flatten().tolist()
    assert loss.seen == [targets[0:2], targets[2:4], targets[4:5]]


def test_beside_a_global_batch_it_is_the_micro_batch(tmp_path: Path) -> None:
    loss = Sizes()
    with trainer_of(tmp_path / "run", DataLoader(rows(8), 2, shuffle=True), loss=loss) as trainer:
        assert trainer.fit().steps == 2
    assert [len(batch) for batch in loss.seen] == [2, 2, 2, 2]
    assert sorted(y for batch in loss.seen for y in batch) == sorted(rows(8).tensors[1].flatten().tolist())


def test_a_data_loader_with_the_held_out_data_keeps_its_batch_size(tmp_path: Path) -> None:
    loss = Sizes()
    with trainer_of(tmp_path / "run", loss=loss, eval_data=DataLoader(rows(7), 3)) as trainer:
        trainer.evaluate()
    assert [len(batch) for batch in loss.seen] == [3, 3, 1]


class Stream(IterableDataset[Any]):
    """A stream that cannot be cut."""

    def __init__(self, count: int) -> None:
        self._rows = rows(count)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


@pytest.mark.parametrize("workers", ["unset", 0])
def test_a_stream_is_read_once_an_epoch(tmp_path: Path, workers: int | str) -> None:
    loss = Sizes()
    loader = {} if workers == "unset" else {"num_workers": workers}
    options: dict[str, Any] = {"loss": loss, "eval_data": Stream(3), "evaluate": {"every": "end"}}
    config = config_of(tmp_path / "run", train={"epochs": 2}, evaluate={"every": "end"})
    config = config.model_copy(update={"loader": config.loader.model_validate(loader)})
    del options["evaluate"]
    with Trainer(make_model(), config, Stream(10), **options) as trainer:
        result = trainer.fit()
    assert result.steps == 6
    assert [len(batch) for batch in loss.seen] == [4, 4, 2, 4, 4, 2, 3]
    assert [(entry["step"], entry["count"]) for entry in result.history] == [(6, 3)]


def test_a_schedule_that_needs_the_length_of_a_stream_is_refused_at_once(tmp_path: Path) -> None:
    with (
        trainer_of(tmp_path / "run", Stream(10), train={"schedule": {"name": "cosine"}}) as trainer,
        pytest.raises(ConfigError, match="cosine"),
    ):
        trainer.fit()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("micro", [1, "auto"])
def test_a_ready_optimizer_and_scheduler(tmp_path: Path, micro: int | str) -> None:
    """Case 5: StepLR(1, 0.5) and four updates."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train = {"max_steps": 4, "epochs": "unset", "global_batch": 3, "micro_batch": micro}
    with trainer_of(tmp_path / "run", model=model, optimizer=optimizer, scheduler=scheduler, train=train) as trainer:
        rates = [info.logged["lr"] for info in trainer.steps() if info.logged is not None]
    assert rates == [0.1, 0.05, 0.025, 0.0125]


def test_one_cycle_over_exactly_the_updates(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)
    train = {"max_steps": 4, "epochs": "unset"}
    with trainer_of(tmp_path / "run", model=model, optimizer=optimizer, scheduler=scheduler, train=train) as trainer:
        assert trainer.fit().steps == 4


def test_an_optimizer_may_be_made_by_a_function(tmp_path: Path) -> None:
    made = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        made.append(torch.optim.Adagrad(model.parameters(), 0.5))
        return made[0]

    train = {"schedule": {"name": "linear", "final_fraction": 0.0}}
    with trainer_of(tmp_path / "run", optimizer=make, train=train) as trainer:
        rates = [info.logged["lr"] for info in trainer.steps() if info.logged is not None]
    assert rates == [0.5, 0.25, 0.0]
    assert len(made[0].state) == 4


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    model = make_model()
    own, other = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, make_model()))
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"scheduler": scheduler}, "without its optimizer"),
        ({"scheduler": scheduler, "optimizer": other}, "another optimizer's"),
        ({"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(own), "optimizer": own}, "ReduceLROnPlateau"),
    ]
    for options, named in refused:
        with pytest.raises(ConfigError, match=named):
            trainer_of(tmp_path / "run", model=model, **options)
    with (
        trainer_of(tmp_path / "run", model=model, optimizer=other) as trainer,
        pytest.raises(ConfigError, match="none"),
    ):
        trainer.fit()
    frozen = make_model().requires_grad_(False)
    with trainer_of(tmp_path / "run", model=frozen) as trainer, pytest.raises(ConfigError, match="gradient"):
        trainer.fit()
    assert not (tmp_path / "run").exists()


def test_an_existing_run_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with trainer_of(tmp_path / "run") as trainer, pytest.raises(RunDirExists):
        trainer.fit()
