"""Training runs under fsdp, and under the other kinds to compare with, that rank tests vary."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline import Trainer
from tests.ranks.branches import Branched, Branches, Rows, squared_error, warnings_logged
from tests.ranks.branches import Seen as Branch
from tests.ranks.training import LENGTH, WIDTH, MaskedRegression, MaskedRows, config_of
from tests.ranks.training import Case as Base

FSDP: dict[str, Any] = {"kind": "fsdp", "timeout_s": 20, "min_params": 30}
"""Small enough that the blocks of `Deep` are units."""
ALWAYS: dict[str, Any] = {**FSDP, "reshard_after_forward": "always"}


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = x + self.outer(torch.tanh(self.inner(x)))
        return outputs


class Deep(nn.Module):
    """Two repeated blocks between two layers, of sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = block(x)
        outputs: Tensor = self.last(x) * self.scale
        return outputs


def partly_frozen() -> nn.Module:
    """One block and a bias do not train."""
    model = Deep()
    model.blocks[0].requires_grad_(False)
    model.get_parameter("last.bias").requires_grad_(False)
    return model


class Tied(nn.Module):
    """An embedding that is the head too, and a frozen block in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Linear(8, WIDTH, bias=False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.blocks[0].requires_grad_(False)
        self.norm = nn.BatchNorm1d(LENGTH)
        self.head = nn.Linear(8, WIDTH, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.embedding.weight
        for block in self.blocks:
            x = block(x)
        outputs: Tensor = self.head(self.norm(x)).sum(-1, keepdim=True)
        return outputs


def on_meta() -> nn.Module:
    """No values anywhere."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1)).double()


def on_meta_but_on_rank_0() -> nn.Module:
    """Values on rank 0 only."""
    if int(os.environ["RANK"]) == 0:
        return Tied()
    with torch.device("meta"):
        return Tied()


@dataclass(frozen=True)
class Case:
    """One training run."""

    directory: str
    parallel: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[], nn.Module] = Deep
    num_rows: int = 37
    lengths: Sequence[int] = (3, 6, 1, 5)
    num_eval_rows: int | None = None
    aux: bool = False
    load: str | None = None
    save: int | None = None
    """Updates between two checkpoints."""
    every: int | None = None
    """Updates between two evaluations."""
    ready: bool = False
    """Hand in an optimizer and a scheduler that are made before the trainer."""
    gradient_noise: bool = False
    device: str = "auto"


@dataclass
class Seen:
    """What one rank saw of it."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    kind: str = ""


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Weights as a plain model has them; all ranks call it."""
    found: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if torch.cuda.is_available():  # shards that are kept on the host cannot be gathered by NCCL
            value = value.cuda()
        gather: Any = getattr(value, "full_tensor", value.clone)
        found[name] = gather().cpu()
    return found


def train(case: Case) -> Seen:
    """Run the case on this rank."""
    seen = Seen()
    train: dict[str, Any] = {"global_batch": 8, "max_steps": 6, "shuffle": False, **case.train}
    sections: dict[str, Any] = {"train": train, "parallel": {"kind": "auto", "timeout_s": 20, **case.parallel}}
    if case.every is not None:
        sections["evaluate"] = {"every": case.every}
    if case.gradient_noise:
        sections["track"] = {"every": 1, "console": False, "gradient_noise": True}
    sections["hardware"] = {"device": case.device}
    sections["checkpoint"] = {"every": case.save, "at_end": False}
    config = config_of(Base(case.directory, sections))
    held_out = None if case.num_eval_rows is None else MaskedRows(case.num_eval_rows, case.lengths)
    model, options = case.make(), dict[str, Any]()
    if case.ready:
        groups = [{"params": [p for p in model.parameters() if p.dim() == d], "lr": 0.05 / (1 + d)} for d in (2, 1, 0)]
        optimizer = torch.optim.SGD(groups, momentum=0.9)
        options = {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
    rows, task = MaskedRows(case.num_rows, case.lengths), MaskedRegression([], aux=case.aux)
    with Trainer(model, config, rows, loss=task, eval_data=held_out, **options) as trainer:
        if case.load is not None:
            trainer.load(case.load)
        for info in trainer.steps():
            assert info.logged is not None
            seen.losses.append(info.logged["loss"])
            seen.norms.append(info.logged["grad_norm"])
            seen.rates.append(info.logged["lr"])
            if "gradient_noise_scale" in info.logged:
                seen.noise.append(info.logged["gradient_noise_scale"])
            if info.evaluation is not None:
                seen.evaluations.append(dict(info.evaluation))
        seen.weights = whole(trainer.model)
        seen.kind = trainer._run.plan.kind
    return seen


def train_several(cases: Sequence[Case]) -> list[Seen]:
    """Run the cases one after the other on this rank."""
    return [train(case) for case in cases]


def predict_several(cases: Sequence[Case], num_rows: int) -> list[list[Tensor]]:
    """Predictions of untrained models, by what each says to a row."""
    found = []
    for case in cases:
        train = {"global_batch": 8, "max_steps": 1, "micro_batch": 2}
        config = config_of(Base(case.directory, {"train": train, "parallel": case.parallel}))
        with Trainer(case.make(), config, MaskedRows(8), loss=MaskedRegression([])) as trainer:
            found.append(trainer.predict(MaskedRows(num_rows), forward=lambda model, batch: model(batch["x"])))
    return found


def train_branches(cases: Sequence[Branched]) -> list[Branch]:
    """Losses, whole weights and warnings of models with a layer that only some rows use."""
    found = []
    for case in cases:
        sections = {
            "train": {"shuffle": False, **case.train},
            "parallel": {"kind": "auto", "timeout_s": 20, **case.parallel},
        }
        model, rows = Branches(case.reentrant), Rows(case.num_rows, case.uses)
        config, losses = config_of(Base(case.directory, sections)), list[float]()
        with warnings_logged() as warnings, Trainer(model, config, rows, loss=squared_error) as trainer:
            for info in trainer.steps():
                assert info.logged is not None
                losses.append(info.logged["loss"])
            found.append(Branch(losses, whole(trainer.model), warnings))
    return found


def checkpoint(directory: str, step: int) -> str:
    """Where a run has saved that step."""
    return str(Path(directory) / "checkpoints" / f"step_{step}")
