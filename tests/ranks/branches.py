"""A run whose model has a layer that only some rows use, and what the tests around it look at."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.parallel.strategy import Batch
from tests.ranks.training import Case, config_of

WIDTH = 4


class Rows(Dataset[dict[str, Tensor]]):
    """Row i is drawn from seed i; `uses[i % len(uses)]` says whether it goes through the side layer."""

    def __init__(self, num_rows: int, uses: Sequence[bool]) -> None:
        self._num_rows = num_rows
        self._uses = uses

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
        y = torch.randn((), dtype=torch.float64, generator=generator)
        return {"x": x, "y": y, "use": torch.tensor(self._uses[index % len(self._uses)])}


class Branches(nn.Module):
    """A trunk, a head, and a side layer that runs only for batches with a row that uses it."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Linear(WIDTH, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)
        self.side = nn.Linear(8, 1)
        self._reentrant = reentrant
        """Of the checkpoint around the middle and the side layer; None: no checkpoint."""
        self.double()

    def forward(self, x: Tensor, use: Tensor) -> Tensor:
        hidden = self._run(self.middle, torch.tanh(self.trunk(x)))
        outputs: Tensor = self.head(hidden)
        if bool(use.any()):
            outputs = outputs + self._run(self.side, hidden) * use[:, None]
        return outputs.squeeze(-1)

    def _run(self, layer: nn.Module, x: Tensor) -> Tensor:
        if self._reentrant is None:
            result: Tensor = layer(x)
        else:
            result = checkpoint(layer, x, use_reentrant=self._reentrant)
        return result


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    error: Tensor = (model(batch["x"], batch["use"]) - batch["y"]).square().mean()
    return error


@contextmanager
def warnings_logged() -> Iterator[list[str]]:
    """What drumline warns of on this rank."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("drumline").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("drumline").removeHandler(handler)


@dataclass(frozen=True)
class Branched:
    """One run over `Rows` in their own order."""

    directory: str
    train: Mapping[str, Any]
    uses: Sequence[bool]
    parallel: Mapping[str, Any] = field(default_factory=dict)
    reentrant: bool | None = None
    num_rows: int = 72


@dataclass
class Seen:
    """What one rank saw of it."""

    losses: list[float]
    weights: dict[str, Tensor]
    warnings: list[str]


def train_branches(cases: Sequence[Branched]) -> list[Seen]:
    """Run the cases one after the other on this rank."""
    return [train_branched(case) for case in cases]


def train_branched(case: Branched) -> Seen:
    config = {"train": {"shuffle": False, **case.train}, "parallel": {"kind": "auto", "timeout_s": 20, **case.parallel}}
    losses = []
    with (
        warnings_logged() as warnings,
        Trainer(
            Branches(case.reentrant),
            config_of(Case(case.directory, config)),
            Rows(case.num_rows, case.uses),
            loss=squared_error,
        ) as trainer,
    ):
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return Seen(losses, weights, warnings)
