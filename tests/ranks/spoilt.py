"""A run over rows of which some have a target that is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Trainer
from tests.ranks.branches import warnings_logged
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model


class SpoiltRows(Dataset[dict[str, Tensor]]):
    """The rows of MaskedRows named in `keep`, in that order; some have this value as their target."""

    def __init__(self, keep: Sequence[int], spoilt: Mapping[int, float], dtype: torch.dtype) -> None:
        self._rows = MaskedRows(max(keep) + 1)
        self._keep = keep
        self._spoilt = spoilt
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self._keep)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        number = self._keep[index]
        row = self._rows[number]
        if number in self._spoilt:
            row["y"] = torch.full_like(row["y"], self._spoilt[number])
        return row | {name: row[name].to(self._dtype) for name in ("x", "y")}


@dataclass(frozen=True)
class Spoilt:
    """One run over rows in their own order, eight an update."""

    directory: str
    train: Mapping[str, Any]
    spoilt: Mapping[int, float] = field(default_factory=dict)
    keep: Sequence[int] = range(64)
    ready: bool = False
    """Hand in an optimizer that is not fused, with a scheduler that halves the rate each update."""
    single_precision: bool = False
    track_every: int = 1
    num_eval_rows: int | None = None
    evaluate_every: int | str = "end"


@dataclass
class Ended:
    """What one rank saw of it."""

    losses: list[float] = field(default_factory=list)
    """Of the log lines."""
    rates: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Of every record that `steps()` yielded."""
    logged: list[int] = field(default_factory=list)
    """Steps of the log lines."""
    evaluated: list[int] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    """Loss scale after each update; empty without one."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    skipped: int = 0
    error: str = ""
    message: str = ""
    warnings: list[str] = field(default_factory=list)


def train_spoilt(case: Spoilt) -> Ended:
    """Run the case on this rank; an exception is part of what is seen."""
    ended = Ended()
    model: nn.Module = make_model().float() if case.single_precision else make_model()
    train = {"shuffle": False, "global_batch": 8, "epochs": 1, **case.train}
    sections = {
        "train": train,
        "track": {"every": case.track_every, "console": False},
        "evaluate": {"every": case.evaluate_every},
    }
    options: dict[str, Any] = {}
    if case.ready:
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, foreach=True)
        options = {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}
    if case.num_eval_rows is not None:
        options["eval_data"] = MaskedRows(case.num_eval_rows)
    rows, task = SpoiltRows(case.keep, case.spoilt, next(model.parameters()).dtype), MaskedRegression([])
    trainer = Trainer(model, config_of(Case(case.directory, sections)), rows, loss=task, **options)
    with warnings_logged() as ended.warnings:
        try:
            for info in trainer.steps():
                ended.steps.append(info.step)
                if info.logged is not None:
                    ended.losses.append(info.logged["loss"])
                    ended.rates.append(info.logged["lr"])
                    ended.logged.append(info.logged["step"])
                    ended.skipped = info.logged["skipped"]
                if info.evaluation is not None:
                    ended.evaluated.append(info.step)
                scale = trainer._run.strategy.state()["learners"]["main"]["loss_scale"]
                ended.scales += [] if scale is None else [scale["scale"]]
        except Exception as error:
            ended.error, ended.message = type(error).__name__, str(error)
        finally:
            trainer.close()
    ended.weights = {name: value.clone() for name, value in model.state_dict().items()}
    return ended
