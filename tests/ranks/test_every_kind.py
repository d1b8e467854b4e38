"""Promise 1 under every kind of parallelism, and checkpoints that each kind saves and every other loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from drumline import Trainer
from drumline.engine.checkpoint import read_checkpoint
from tests.rank_pool import RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model

NUM_ROWS, STEPS, HALF = 37, 10, 4
SGD: dict[str, Any] = {"global_batch": 8, "max_steps": STEPS}
ADAMW: dict[str, Any] = {
    **SGD,
    "micro_batch": 2,
    "lr": 0.01,
    "max_norm": 0.5,
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "averaging": {"kind": "ema", "decay": 0.9},
}
TOLERANCE = 1e-10


class Way(NamedTuple):
    """A kind of parallelism, over so many data shards."""

    kind: str
    shards: int

    @property
    def world(self) -> int:
        """Processes."""
        return 1 if self.kind == "data_parallel" else self.shards

    @property
    def parallel(self) -> dict[str, Any]:
        """The config's section."""
        replicas = {"replicas": self.shards} if self.kind == "data_parallel" else {}
        return {"kind": self.kind, "timeout_s": 20, **replicas}

    def __str__(self) -> str:
        return f"{self.kind}-{self.shards}"


ALONE = Way("single", 1)
WAYS = [Way(kind, shards) for kind in ("data_parallel", "ddp", "fsdp") for shards in (2, 3, 4)]
LOADERS = [ALONE, Way("data_parallel", 3), Way("ddp", 2), Way("fsdp", 3)]


@dataclass
class Part:
    """What one rank saw of a run, from its start or from a checkpoint on."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    saved: str = ""


def train(directory: str, way: Way, settings: dict[str, Any], checkpoint: str | None = None, aux: bool = False) -> Part:
    """Train; the whole state is saved half-way and at the end."""
    case = Case(directory, {"train": settings, "evaluate": {"every": 2, "batch": 3}})
    config = config_of(case, parallel=way.parallel, checkpoint={"at_end": True})
    part = Part()
    task = MaskedRegression([], aux=aux)
    with Trainer(make_model(), config, MaskedRows(NUM_ROWS), loss=task, eval_data=MaskedRows(7)) as trainer:
        if checkpoint is not None:
            trainer.load(checkpoint)
        for info in trainer.steps():
            assert info.logged is not None
            part.losses.append(info.logged["loss"])
            part.norms.append(info.logged["grad_norm"])
            if info.evaluation is not None:
                part.evaluations.append(dict(info.evaluation))
            if info.step == HALF:
                part.saved = str(trainer.save())
    return part


def run(ranks: RankPool, folder: Path, way: Way, *args: Any) -> tuple[Part, dict[str, Any]]:
    """What rank 0 saw, and the state at the end; all ranks have seen the same."""
    directory = fresh(folder)
    first, *others = ranks.run(way.world, train, directory, way, *args)
    for other in others:
        assert (other.losses, other.norms, other.evaluations) == (first.losses, first.norms, first.evaluations)
    return first, read_checkpoint(Path(directory) / "checkpoints" / f"step_{STEPS}")["strategy"]


def same(found: Any, expected: Any) -> None:
    """The same keys, and numbers within the tolerance, however deep."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=TOLERANCE)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=0, abs=TOLERANCE)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_losses_norms_and_weights_are_those_of_one_process(ranks: RankPool, tmp_path: Path, way: Way) -> None:
    for micro in ("auto", 1):
        settings = {**SGD, "micro_batch": micro, "max_norm": 0.5}
        expected, state = run(ranks, tmp_path, ALONE, settings, None, True)
        found, own = run(ranks, tmp_path, way, settings, None, True)
        assert len(set(expected.losses)) == STEPS
        same((found.losses, found.norms, found.evaluations), (expected.losses, expected.norms, expected.evaluations))
        same(own["model"], state["model"])


@pytest.mark.parametrize("saved_by", LOADERS, ids=str)
def test_each_kind_goes_on_from_what_every_other_saved(ranks: RankPool, tmp_path: Path, saved_by: Way) -> None:
    expected, state = run(ranks, tmp_path, ALONE, ADAMW)
    begun, own = run(ranks, tmp_path, saved_by, ADAMW)
    same(own, state)
    for way in LOADERS:
        rest, ended = run(ranks, tmp_path, way, ADAMW, begun.saved)
        same((rest.losses, rest.norms), (expected.losses[HALF:], expected.norms[HALF:]))
        same(rest.evaluations, expected.evaluations[HALF // 2 :])
        same(ended, state)
