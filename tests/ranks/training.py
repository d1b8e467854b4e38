"""A small real training run that rank tests vary: masked regression in float64 with uneven token counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import RunConfig, Trainer
from drumline.parallel.strategy import Batch, Loss

LENGTH = 6
WIDTH = 4


class MaskedRows(Dataset[dict[str, Tensor]]):
    """Row i has `lengths[i % len(lengths)]` counted tokens of LENGTH, all drawn from seed i."""

    def __init__(self, num_rows: int, lengths: Sequence[int] = (3, 6, 1, 5)) -> None:
        self._num_rows = num_rows
        self._lengths = lengths

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self._num_rows:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(LENGTH, WIDTH, dtype=torch.float64, generator=generator)
        y = torch.randn(LENGTH, dtype=torch.float64, generator=generator)
        mask = torch.arange(LENGTH) < self._lengths[index % len(self._lengths)]
        return {"x": x, "y": y, "mask": mask, "id": torch.tensor(index)}


class MaskedRegression:
    """Squared error summed over counted tokens, with an auxiliary mean over samples and a counted metric."""

    unit = "tokens"

    def __init__(self, seen: list[int], *, aux: bool = False) -> None:
        self._seen = seen
        self._aux = aux

    def count(self, batch: Batch) -> int:
        return int(batch["mask"].sum())

    def check(self, batch: Batch) -> None:
        pass

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch["x"])
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        self._seen.extend(batch["id"].tolist())
        error = (outputs - batch["y"]).square() * batch["mask"]
        close = ((error < 1) & batch["mask"]).sum()
        aux = outputs.square().mean(-1).mean() * 0.1 if self._aux else None
        return Loss(error.sum(), aux, {"close": (close, batch["mask"].sum())})


def make_model() -> nn.Module:
    """The same weights in every process."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1)).double()


@dataclass(frozen=True)
class Case:
    """One training run."""

    directory: str
    config: Mapping[str, Any]
    num_rows: int = 37
    lengths: Sequence[int] = (3, 6, 1, 5)
    num_eval_rows: int | None = None
    aux: bool = False


@dataclass
class Record:
    """What one rank saw of it."""

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0


def config_of(case: Case, **sections: Mapping[str, Any]) -> RunConfig:
    """The case's config: SGD, constant rate, a log line an update, no console."""
    base: dict[str, Any] = {
        "run_dir": case.directory,
        "track": {"every": 1, "console": False},
        "checkpoint": {"at_end": False},
        "parallel": {"kind": "auto", "timeout_s": 20},
        "loader": {"num_workers": 0},
        "monitor": {"record": False},
    }
    train = {
        "max_norm": None,
        "lr": 0.05,
        "optimizer": {"name": "sgd", "weight_decay": 0.0},
        "schedule": {"name": "constant"},
    }
    merged = {**base, **case.config, **sections, "train": {**train, **case.config.get("train", {})}}
    return RunConfig.model_validate(merged)


def train(case: Case, make: Callable[[], nn.Module] = make_model) -> Record:
    """Run the case on this rank."""
    record, seen = Record(), list[int]()
    held_out = None if case.num_eval_rows is None else MaskedRows(case.num_eval_rows, case.lengths)
    task = MaskedRegression(seen, aux=case.aux)
    rows = MaskedRows(case.num_rows, case.lengths)
    with Trainer(make(), config_of(case), rows, loss=task, eval_data=held_out) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            record.losses.append(info.logged["loss"])
            record.rates.append(info.logged["lr"])
            record.norms.append(info.logged["grad_norm"])
            record.steps = info.step
            record.skipped = info.logged["skipped"]
        record.weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        record.trained = seen
    return record


def fresh(folder: Path) -> str:
    """A run directory that does not exist yet."""
    return str(folder / f"run-{len(list(folder.iterdir()))}")


def largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Over all weights."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)
