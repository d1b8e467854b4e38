"""A replica and a thread a GPU: single's numbers, equal replicas, compiled and in every precision. Run: pytest -m gpu.

With one GPU it is one replica, which shows that little: most of it needs two.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import Loss, Trainer
from drumline.errors import OutOfMemory
from drumline.parallel.data_parallel import Replicated
from drumline.parallel.strategy import Batch
from drumline.tasks.classification import Classification
from tests.ranks.training import WIDTH, Case, MaskedRegression, MaskedRows, config_of, largest_difference

pytestmark = pytest.mark.gpu

NUM_GPUS = torch.cuda.device_count()


class Block(nn.Module):
    """Two of them are what `compile: blocks` looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


def make_model(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Sequential(Block(), Block()), nn.Linear(8, 1)).to(dtype)


class Rows(MaskedRows):
    """Rows of one type."""

    def __init__(self, dtype: torch.dtype, num_rows: int = 37) -> None:
        super().__init__(num_rows)
        self._dtype = dtype

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        return {k: v.to(self._dtype) if v.is_floating_point() else v for k, v in row.items()}


class Stateless(MaskedRegression):
    """Keeps no list of rows, whose length would be a reason to compile anew."""

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        error = (outputs - batch["y"]).square() * batch["mask"]
        return Loss(error.sum(), None, {"error": (error.sum(), batch["mask"].sum())})


class Run:
    """A short run on the GPUs, and what it came to."""

    def __init__(self, folder: Path, kind: str, dtype: torch.dtype = torch.float64, **train: Any) -> None:
        settings = {"global_batch": 8 * max(2, NUM_GPUS), "max_steps": 10, "precision": "fp32", **train}
        number = len(list(folder.iterdir()))
        case = Case(str(folder / f"{kind}-{number}"), {"train": settings})
        config = config_of(case, hardware={"device": "cuda"}, parallel={"kind": kind}, evaluate={"batch": 3})
        self.losses: list[float] = []
        rows = Rows(dtype, 137)
        task = Stateless([])
        with Trainer(make_model(dtype), config, rows, loss=task, eval_data=Rows(dtype, 11)) as trainer:
            self.losses += [info.logged["loss"] for info in trainer.steps() if info.logged is not None]
            self.skipped = trainer._run.progress.skipped
            self.evaluation = trainer.evaluate()
            self.weights = {name: value.detach().cpu() for name, value in trainer.model.state_dict().items()}
            strategy = trainer._run.strategy
            self.others = [] if kind == "single" else weights_of_others(strategy)


def weights_of_others(strategy: Any) -> list[dict[str, Tensor]]:
    """Those of each replica but the first, which lie on GPUs of their own."""
    assert isinstance(strategy, Replicated)
    assert [replica.device.index for replica in strategy._replicas] == list(range(NUM_GPUS))
    others = [replica.model.state_dict() for replica in strategy._replicas[1:]]
    return [{name: value.cpu() for name, value in state.items()} for state in others]


def assert_alike(run: Run) -> None:
    for other in run.others:
        assert largest_difference(other, run.weights) == 0


@pytest.mark.parametrize("micro", ["auto", 1, 3])
def test_the_numbers_are_those_of_one_gpu(tmp_path: Path, micro: int | str) -> None:
    alone = Run(tmp_path, "single", micro_batch=micro, max_norm=0.5)
    found = Run(tmp_path, "data_parallel", micro_batch=micro, max_norm=0.5)
    torch.testing.assert_close(found.losses, alone.losses, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.weights, alone.weights, rtol=0, atol=1e-10)
    assert found.evaluation == pytest.approx(alone.evaluation, rel=1e-10)
    assert_alike(found)


def test_fewer_rows_than_gpus_use_fewer(tmp_path: Path) -> None:
    alone = Run(tmp_path, "single", global_batch=1)
    found = Run(tmp_path, "data_parallel", global_batch=1)
    torch.testing.assert_close(found.losses, alone.losses, rtol=0, atol=1e-10)
    assert_alike(found)


@pytest.mark.parametrize("compiled", ["none", "whole", "blocks"])
def test_replicas_are_equal_to_the_bit_after_twenty_updates(tmp_path: Path, compiled: str) -> None:
    """The epoch's last window has fewer rows, so that what is compiled meets other shapes."""
    settings = {"max_steps": 20, "compile": compiled, "optimizer": {"name": "adamw"}, "lr": 0.01}
    alone = Run(tmp_path, "single", torch.float32, **settings)
    found = Run(tmp_path, "data_parallel", torch.float32, **settings)
    torch.testing.assert_close(found.losses, alone.losses, rtol=1e-4, atol=1e-5)
    assert_alike(found)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("averaging", [None, {"kind": "ema", "decay": 0.5}])
def test_half_precision_stays_close(tmp_path: Path, precision: str, averaging: dict[str, Any] | None) -> None:
    reference = Run(tmp_path, "single", torch.float32)
    settings = {"precision": precision, "averaging": averaging, "optimizer": {"name": "adamw"}}
    found = Run(tmp_path, "data_parallel", torch.float32, **settings)
    assert len(found.losses) == 10 and found.skipped <= 3
    assert found.losses[0] == pytest.approx(reference.losses[0], rel=0.05)
    assert found.evaluation["count"] == 11
    assert_alike(found)


class Failing(MaskedRegression):
    """Fails on the last GPU."""

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        if outputs.device.index == NUM_GPUS - 1 and outputs.requires_grad:
            torch.empty(1 << 50, device=outputs.device)
        return super().loss(outputs, batch)


def test_a_gpu_without_memory_is_named_and_no_thread_waits(tmp_path: Path) -> None:
    config = config_of(
        Case(str(tmp_path / "run"), {"train": {"global_batch": 8 * NUM_GPUS, "max_steps": 3}}),
        hardware={"device": "cuda"},
        parallel={"kind": "data_parallel"},
    )
    named = f"replica {NUM_GPUS - 1} on cuda:{NUM_GPUS - 1}: " if NUM_GPUS > 1 else "out of memory"
    with (
        pytest.raises(OutOfMemory, match=named),
        Trainer(make_model(), config, MaskedRows(137), loss=Failing([])) as trainer,
    ):
        trainer.fit()
    assert not [thread.name for thread in threading.enumerate() if "replica" in thread.name]


def test_predictions_keep_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = torch.arange(63.0).reshape(21, 3)
    data = TensorDataset(rows, torch.zeros(21).long())
    config = config_of(
        Case(str(tmp_path / "run"), {"train": {"global_batch": 8, "max_steps": 2}}),
        hardware={"device": "cuda"},
        parallel={"kind": "data_parallel"},
        evaluate={"batch": 2},
    )
    with Trainer(nn.Linear(3, 3), config, data, loss=Classification(3), eval_data=data) as trainer:
        trainer.fit()
        found = trainer.predict(data, forward=lambda model, batch: batch[0])
        assert torch.equal(torch.stack(found), rows)


def dropped(model: nn.Module, batch: Batch) -> Tensor:
    error: Tensor = (nn.functional.dropout(model(batch["x"]).squeeze(-1), 0.5) - batch["y"]).square().mean()
    return error


def test_dropout_is_the_same_again(tmp_path: Path) -> None:
    losses = []
    for number in range(2):
        case = Case(str(tmp_path / f"{number}"), {"train": {"global_batch": 8, "max_steps": 4, "precision": "fp32"}})
        config = config_of(case, hardware={"device": "cuda"}, parallel={"kind": "data_parallel"})
        with Trainer(make_model(), config, MaskedRows(37), loss=dropped) as trainer:
            losses.append([info.logged["loss"] for info in trainer.steps() if info.logged is not None])
    assert losses[0] == losses[1]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_update_makes_no_host_sync(tmp_path: Path) -> None:
    train = {"global_batch": 8 * NUM_GPUS, "max_steps": 12, "precision": "bf16", "max_norm": 1.0}
    config = config_of(
        Case(str(tmp_path / "run"), {"train": train}),
        hardware={"device": "cuda"},
        parallel={"kind": "data_parallel"},
        track={"every": 100, "console": False},
    )
    with Trainer(make_model(torch.float32), config, Rows(torch.float32, 137), loss=squared) as trainer:
        steps = trainer.steps()
        for _ in range(3):
            next(steps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(6):
                next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def squared(model: nn.Module, batch: Batch) -> Loss:
    return Loss(((model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]).sum())
