"""What an evaluation in the run gave is what the checkpoint of that update gives, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Callback, Trainer
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.test_batch_norm import Normalised, squared_error
from tests.ranks.training import Case, MaskedRows, config_of, fresh, largest_difference

AVERAGING: dict[str, Any] = {"none": None, "ema": {"kind": "ema", "decay": 0.8}, "swa": {"kind": "swa", "start": 0.3}}


def trainer_of(directory: str, broadcast: bool, averaging: str, saves: list[Callback]) -> Trainer:
    sections = {
        "train": {"global_batch": 12, "epochs": 1, "averaging": AVERAGING[averaging]},
        "parallel": {"kind": "ddp", "broadcast_buffers": broadcast, "timeout_s": 20},
        "evaluate": {"every": 2},
        "checkpoint": {"every": 2, "at_end": False},
    }
    config = config_of(Case(directory, sections))
    return Trainer(Normalised(), config, MaskedRows(60), eval_data=MaskedRows(13), loss=squared_error, callbacks=saves)


class Saves(Callback):
    """Where each evaluated update was saved."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def on_save(self, trainer: Trainer, path: Path) -> None:
        self.paths.append(str(path))


Seen = tuple[list[float], list[str], dict[str, Tensor]]


def train(directory: str, broadcast: bool, averaging: str) -> Seen:
    saves = Saves()
    with trainer_of(directory, broadcast, averaging, [saves]) as trainer:
        result = trainer.fit()
        state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert [entry["step"] for entry in result.history] == [2, 4, 5]
    return [entry["loss"] for entry in result.history], saves.paths, state


def evaluate(directory: str, broadcast: bool, averaging: str, checkpoint: str) -> float:
    with trainer_of(directory, broadcast, averaging, []) as trainer:
        trainer.load(checkpoint)
        return trainer.evaluate()["loss"]


@pytest.mark.parametrize("averaging", AVERAGING)
@pytest.mark.parametrize("broadcast", [True, False])
def test_the_logged_evaluation_is_that_of_the_checkpoint(
    ranks: RankPool, tmp_path: Path, broadcast: bool, averaging: str
) -> None:
    (losses, paths, state), (others, _, other) = ranks.run(2, train, fresh(tmp_path), broadcast, averaging)
    assert losses == others and len(set(losses)) == 3
    for loss, path in zip(losses, paths, strict=False):
        assert ranks.run(2, evaluate, fresh(tmp_path), broadcast, averaging, path) == [loss, loss]
    if broadcast:
        assert largest_difference(state, other) == 0
    assert not torch.equal(state["norm.running_mean"], torch.zeros_like(state["norm.running_mean"]))


def save_alone(directory: str) -> None:
    """Statistics are shared at the save, where the other rank never comes."""
    with trainer_of(directory, False, "none", []) as trainer:
        for info in trainer.steps():
            if info.step == 3 and trainer.world.rank == 0:
                trainer.save()


def test_a_save_on_one_rank_is_found_where_statistics_are_shared_too(ranks: RankPool, tmp_path: Path) -> None:
    alone, other = failures_of(ranks, 2, save_alone, fresh(tmp_path))
    assert alone.name == "GroupError" and "different places" in alone.message
    assert other.name == "PeerFailed"


def twice(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Two forward passes through one BatchNorm, one backward pass (pytorch #65907, MONAI #352)."""
    first, second = model(batch["x"]), model(batch["x"].flip(0) * 0.5)
    error: Tensor = (first - batch["y"][:, 0]).square().mean() + (first - second).square().mean()
    return error


def train_twice(directory: str) -> tuple[list[float], dict[str, Tensor]]:
    case = Case(directory, {"train": {"global_batch": 12, "epochs": 1, "micro_batch": 6, "shuffle": False}})
    with Trainer(Normalised(), config_of(case), MaskedRows(36), loss=twice) as trainer:
        trainer.model.drop.p = 0.0  # type: ignore[union-attr]
        losses = [info.logged["loss"] for info in trainer.steps() if info.logged is not None]
        return losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_several_forward_passes_before_one_backward(ranks: RankPool, tmp_path: Path) -> None:
    """A micro-batch of six normalises alike on one rank, which runs two of them, and on two, which run one each."""
    ((losses, weights),) = ranks.run(1, train_twice, fresh(tmp_path))
    (found, zero), (_, one) = ranks.run(2, train_twice, fresh(tmp_path))
    torch.testing.assert_close(found, losses, rtol=0, atol=1e-10)
    trained = [name for name in weights if name.endswith(("weight", "bias"))]
    for name in trained:
        torch.testing.assert_close(zero[name], weights[name], rtol=0, atol=1e-10)
    assert largest_difference(zero, one) == 0
