"""The preflight on a real GPU, against sizes set by hand; and evaluations that find no memory. Run: pytest -m gpu."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.rundir import read_lines

pytestmark = pytest.mark.gpu

ROOM = 3 << 30
"""Bytes that a process may allocate in these tests."""
WIDTH, LAYERS = 4096, 6


@pytest.fixture(autouse=True)
def whole_memory() -> Iterator[None]:
    """Limits of the process go back to what they were."""
    gc.collect()  # tests before this one
    yield
    gc.collect()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def make_model() -> nn.Module:
    """100 M parameters, and WIDTH * LAYERS kept values a row and position."""
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def rows(number: int) -> TensorDataset:
    """x [rows, 64, WIDTH]: 1 MiB a row."""
    x = torch.zeros(1, 64, WIDTH).expand(number, -1, -1)
    return TensorDataset(x, torch.ones(number))


def loss(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    error: Tensor = (model(x).mean((1, 2)) - y).square().mean()
    return error


def trainer_of(folder: Path, name: str, num_rows: int = 256, num_eval_rows: int = 256, **sections: Any) -> Trainer:
    whole = torch.cuda.get_device_properties(0).total_memory
    train = {
        **{"global_batch": 256, "max_steps": 2, "precision": "fp32", "schedule": {"name": "constant"}},
        **{"optimizer": {"name": "sgd", "momentum": 0.9}},
        **sections.pop("train", {}),
    }
    config = {
        "run_dir": str(folder / name),
        "train": train,
        "hardware": {"memory_fraction": ROOM / whole},
        "track": {"every": 1, "console": False},
        "checkpoint": {"at_end": False},
        "loader": {"num_workers": 0},
        "monitor": {"record": False},
        **sections,
    }
    held_out = rows(num_eval_rows) if num_eval_rows else None
    return Trainer(make_model(), RunConfig.model_validate(config), rows(num_rows), loss=loss, eval_data=held_out)


def events(folder: Path, name: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_lines(folder / name / "events.jsonl") if event["event"] == kind]


def fits(folder: Path, micro_batch: int) -> bool:
    """Whether two updates go through with this size, without recovery."""
    gc.collect()
    torch.cuda.empty_cache()  # of the size before
    train = {"micro_batch": micro_batch, "out_of_memory": {"recover": False}}
    try:
        with trainer_of(folder, f"by-hand-{micro_batch}", num_eval_rows=0, train=train) as trainer:
            trainer.fit()
    except torch.OutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("compiled", ["none", "whole"])
def test_the_size_is_within_one_halving_of_the_best_by_hand(tmp_path: Path, compiled: str) -> None:
    began = time.monotonic()
    with trainer_of(tmp_path, "auto", train={"compile": compiled}) as trainer:
        trainer.fit()
        found = trainer._run.progress.micro_batch
        evaluation = trainer._run.progress.evaluation_batch
    del trainer  # with its weights
    assert found is not None and evaluation is not None
    (event,) = events(tmp_path, "auto", "preflight")
    assert events(tmp_path, "auto", "out_of_memory") == []
    assert event["seconds"] < (30 if compiled == "none" else 120), time.monotonic() - began
    began = time.monotonic()
    best = next(size for size in (256, 128, 64, 32, 16, 8, 4, 2, 1) if fits(tmp_path, size))
    by_hand_s = time.monotonic() - began
    print(f"{compiled}: {found} found in {event['seconds']:.1f} s, {best} by hand in {by_hand_s:.1f} s")
    assert best / 2 <= found <= 2 * best, event
    assert evaluation >= found


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    """Memory as without it, and the losses of a run that was given the size."""
    with trainer_of(tmp_path, "auto", num_eval_rows=0) as trainer:
        trainer.fit()
        found = trainer._run.progress.micro_batch
        held = torch.cuda.memory_allocated()
    del trainer  # with its weights
    with trainer_of(tmp_path, "given", num_eval_rows=0, train={"micro_batch": found}) as trainer:
        trainer.fit()
        assert abs(torch.cuda.memory_allocated() - held) < 64 << 20
    runs = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("auto", "given")]
    losses = [[line["loss"] for line in lines if line["kind"] == "train"] for lines in runs]
    assert losses[0] == losses[1]


def test_an_evaluation_without_memory_is_made_with_smaller_batches(tmp_path: Path) -> None:
    """3 GiB hold no batch of 1,024 rows of 1 MiB and what a layer makes of it."""
    evaluate = {"batch": 1024, "every": 1}
    with trainer_of(tmp_path, "run", 64, 1024, train={"global_batch": 64}, evaluate=evaluate) as trainer:
        trainer.fit()
        progress = trainer._run.progress
        held = torch.cuda.memory_allocated()
        assert progress.evaluation_batch is not None and progress.evaluation_batch < 1024
        assert [metrics["count"] for metrics in progress.history] == [1024, 1024]
        trainer.evaluate()
        assert torch.cuda.memory_allocated() <= held + (1 << 20)
        micro_batch = progress.micro_batch or trainer._run.plan.micro_batch
    found = events(tmp_path, "run", "out_of_memory")
    assert found and {event["phase"] for event in found} == {"evaluation"}
    assert micro_batch == events(tmp_path, "run", "preflight")[0]["training"]["rows"]
