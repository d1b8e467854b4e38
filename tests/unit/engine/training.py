"""A small run in this process that engine tests vary: a mean squared error in float64, SGD, a log line an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from drumline.engine.records import StepInfo
from drumline.parallel.strategy import Batch
from drumline.rundir import read_lines

WIDTH = 3


def rows(count: int = 10, seed: int = 0) -> TensorDataset:
    """x [count, 3] and y [count, 1], float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, dtype=torch.float64, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.1)


def make_model(*, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    """The same weights each time; `norm` puts a BatchNorm into it."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        layers: list[nn.Module] = [nn.Linear(WIDTH, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 1)]
        if norm:
            layers.insert(1, nn.BatchNorm1d(4))
        return nn.Sequential(*layers).double()


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    """Mean over the batch's rows."""
    x, y = batch
    error: Tensor = (model(x) - y).square().mean()
    return error


def config_of(directory: Path, **sections: Mapping[str, Any]) -> RunConfig:
    """Global batch 4, one epoch, momentum, constant rate; each section's settings are replaced one by one."""
    base: dict[str, dict[str, Any]] = {
        "track": {"every": 1, "console": False},
        "checkpoint": {"at_end": False},
        "loader": {"num_workers": 0},
        "monitor": {"record": False},
        "hardware": {"device": "cpu"},
        "train": {
            "global_batch": 4,
            "epochs": 1,
            "lr": 0.05,
            "max_norm": None,
            "optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0},
            "schedule": {"name": "constant"},
        },
    }
    for name, settings in sections.items():
        base[name] = {**base.get(name, {}), **settings}
    base["train"] = {name: value for name, value in base["train"].items() if value != "unset"}
    return RunConfig.model_validate({"run_dir": directory, **base})


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of weights and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    """The same bits."""
    torch.testing.assert_close(dict(first), dict(second), rtol=0, atol=0)


def losses(infos: Sequence[StepInfo]) -> list[float]:
    """Logged losses, one an update."""
    return [info.logged["loss"] for info in infos if info.logged is not None]


def events(directory: Path) -> list[str]:
    """Names of a run's events."""
    return [record["event"] for record in read_lines(directory / "events.jsonl")]


def trainer_of(directory: Path, data: Any = None, model: nn.Module | None = None, **given: Any) -> Trainer:
    """A trainer of the small run; sections of the config and options of the trainer by their names."""
    sections = {name: given.pop(name) for name in list(given) if name in RunConfig.model_fields}
    data = rows() if data is None else data
    return Trainer(model or make_model(), config_of(directory, **sections), data, **{"loss": squared_error, **given})
