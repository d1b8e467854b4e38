"""What models and learners bring along, under fsdp: batch norm, two losses, half precision, offloaded shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline import Trainer
from drumline.config.parallel import FsdpParallel
from drumline.parallel.compute import Compute
from drumline.parallel.fsdp import Fsdp
from drumline.parallel.groups import open_groups, started_world
from drumline.parallel.single import Single
from drumline.parallel.strategy import MAIN, Learner, MicroBatch, Rates, Scale
from tests.rank_pool import RankPool
from tests.ranks.sharded import ALWAYS, FSDP, Case, Deep, Tied, train_several, whole
from tests.ranks.test_gan import OPTIONS, TRAIN, Gan, Points
from tests.ranks.training import Case as Base
from tests.ranks.training import MaskedRegression, MaskedRows, config_of, largest_difference


@pytest.mark.parametrize("way", [FSDP, ALWAYS], ids=["never", "always"])
def test_batch_norm_and_gradient_noise_are_those_of_ddp(ranks: RankPool, tmp_path: Path, way: dict[str, Any]) -> None:
    """Each rank has its own statistics, of which rank 0's are kept; tied and frozen parameters are among the rest."""
    case = Case(str(tmp_path / "ddp"), {"kind": "ddp"}, {"micro_batch": 2}, Tied, gradient_noise=True)
    case = replace(case, num_eval_rows=5, every=2, num_rows=40)
    for expected, found in ranks.run(
        2, train_several, [case, replace(case, directory=str(tmp_path / "f"), parallel=way)]
    ):
        torch.testing.assert_close(found.losses, expected.losses, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.noise, expected.noise, rtol=1e-8, atol=0)
        assert len(found.noise) > 0
        assert largest_difference(found.weights, expected.weights) < 1e-10
        for one, other in zip(found.evaluations, expected.evaluations, strict=True):
            torch.testing.assert_close(dict(one), dict(other), rtol=0, atol=1e-10)


def train_gan(directory: str, parallel: dict[str, Any]) -> dict[str, Tensor]:
    config = config_of(Base(directory, {"train": TRAIN, "parallel": parallel}))
    with Trainer(Gan(), config, Points(), **OPTIONS) as trainer:
        trainer.fit()
        return whole(trainer.model)


def test_learners_take_turns(ranks: RankPool, tmp_path: Path) -> None:
    (expected,) = ranks.run(1, train_gan, str(tmp_path / "one"), {"kind": "single"})
    for number, way in enumerate(({**FSDP, "min_params": 20}, {**ALWAYS, "min_params": 1000})):
        for found in ranks.run(2, train_gan, str(tmp_path / str(number)), way):
            assert largest_difference(found, expected) < 1e-10


class Whitening(torch.optim.Optimizer):
    """A step along the gradient over its whole norm: no element is treated for itself."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["last"] = p.grad.clone()
                p.sub_(p.grad / (p.grad.square().sum().sqrt() + 1e-3) * group["lr"])


def train_whitened(directory: str, parallel: dict[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    config = config_of(Base(directory, {"train": {"global_batch": 8, "max_steps": 4}, "parallel": parallel}))
    rows = MaskedRows(16)
    make: Any = lambda model: Whitening(p for p in model.parameters() if p.dim())  # noqa: E731
    with Trainer(Deep(), config, rows, loss=MaskedRegression([]), optimizer=make) as trainer:
        trainer.fit()
        path = trainer.save()
        trainer.load(path)
        optimizer = trainer._run.strategy._parts[MAIN].update.optimizer  # type: ignore[attr-defined]
        kinds = {type(value["last"]).__name__ for value in optimizer.state.values()}
        return whole(trainer.model), sorted(kinds)


def test_an_optimizer_that_looks_at_whole_parameters_gets_dtensors(ranks: RankPool, tmp_path: Path) -> None:
    ((expected, _),) = ranks.run(1, train_whitened, str(tmp_path / "one"), {"kind": "single"})
    for found, kinds in ranks.run(3, train_whitened, str(tmp_path / "three"), FSDP):
        assert largest_difference(found, expected) < 1e-10
        assert kinds == [DTensor.__name__]


def in_float32() -> nn.Module:
    return Deep().float()


class Float32(MaskedRows):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        return {name: value.float() if value.is_floating_point() else value for name, value in row.items()}


def train_half(directory: str, parallel: dict[str, Any]) -> tuple[list[float], list[str]]:
    """Losses, and the types in which the weights of a block and of the root are used."""
    model, types, losses = in_float32(), list[str](), list[float]()
    train = {"global_batch": 8, "max_steps": 6, "precision": "bf16", "micro_batch": 2, "shuffle": False}
    config = config_of(Base(directory, {"train": train, "parallel": parallel}))
    with Trainer(model, config, Float32(48), loss=MaskedRegression([])) as trainer:
        for layer in (model.get_submodule("first"), model.get_submodule("blocks.1.inner")):
            layer.register_forward_pre_hook(lambda module, inputs: types.append(str(module.weight.dtype)))
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
    return losses, sorted(set(types))


def test_half_precision_gathers_rounded_weights(ranks: RankPool, tmp_path: Path) -> None:
    ((expected, used),) = ranks.run(1, train_half, str(tmp_path / "one"), {"kind": "single"})
    assert used == ["torch.float32"]
    for number, way in enumerate((FSDP, ALWAYS, {**FSDP, "reduce_precision": "bf16"})):
        for losses, types in ranks.run(2, train_half, str(tmp_path / str(number)), way):
            assert types == ["torch.bfloat16"]
            torch.testing.assert_close(losses, expected, rtol=0.02, atol=0)


def step_offloaded(offload: bool) -> dict[str, Tensor] | None:
    """Rank 0's weights after three windows through the strategy itself: a run on the CPU has nothing to offload."""
    groups = open_groups(started_world(), torch.device("cpu"), "gloo", 20.0)
    try:
        settings = FsdpParallel(offload=offload, min_params=30, reshard_after_forward="always")
        task = MaskedRegression([])
        make = lambda model: torch.optim.AdamW(model.parameters(), 0.01)  # noqa: E731
        learners = {MAIN: Learner(task, make, Rates(None, None, None, "update", False))}
        strategy: Single = Single(groups.device, Compute("fp32"))
        size = groups.world.size
        if size > 1:
            strategy = Fsdp(groups, settings, Compute("fp32"))
        model, rows = Deep(), MaskedRows(6, (3,))
        strategy.setup(model, learners)
        for window in range(3):
            mine = [window * 2 + groups.world.rank] if size > 1 else [window * 2, window * 2 + 1]
            batch = torch.utils.data.default_collate([rows[i] for i in mine])
            strategy.window(MAIN, [MicroBatch(batch, 3 * len(mine), len(mine))], Scale(1 / 6, 1 / 2))
            strategy.heed(MAIN, [strategy.notes(MAIN)])
            assert float(strategy.step(MAIN, 0.1).applied) == 1
        state = strategy.state()["model"]
        weights = {name: value.clone() for name, value in state.items()} if groups.world.rank == 0 else None
        strategy.close()
        return weights
    finally:
        groups.close()


def test_offloaded_shards(ranks: RankPool) -> None:
    (expected,) = ranks.run(1, step_offloaded, False)
    for offload in (False, True):
        found, other = ranks.run(2, step_offloaded, offload)
        assert expected is not None and found is not None and other is None
        assert largest_difference(found, expected) < 1e-10
