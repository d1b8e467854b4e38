"""Two losses that take turns, each with its optimizer: the numbers of one process, and of a loop written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Loss, StepInfo, Trainer
from drumline.data.order import epoch_order
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.training import Case, config_of, fresh, largest_difference

UPDATES, BATCH = 5, 7
NAMES = ("discriminator", "generator")


class Points(Dataset[dict[str, Tensor]]):
    """Row i is a point in the plane and the noise that a point is generated from, both drawn from seed i."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        point, noise = torch.randn(2, 2, dtype=torch.float64, generator=generator)
        return {"point": point.sign() + 0.1 * point, "noise": noise}


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.double()


def cross_entropy(logits: Tensor, label: float) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label), reduction="sum")


def discriminator_loss(model: Any, batch: Batch) -> Loss:
    """The discriminator is called twice, and gradients reach the generator, which must not keep them."""
    real, fake = model.discriminator(batch["point"]), model.discriminator(model.generator(batch["noise"]))
    hits = (real > 0).sum()
    return Loss(cross_entropy(real, 1.0) + cross_entropy(fake, 0.0), metrics={"hits": (hits, len(real))})


def generator_loss(model: Any, batch: Batch) -> Loss:
    return Loss(cross_entropy(model.discriminator(model.generator(batch["noise"])), 1.0))


def make_discriminators(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.discriminator.parameters(), 0.02, momentum=0.9)


def make_generators(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.generator.parameters(), 0.01)


OPTIONS: dict[str, Any] = {
    "loss": dict(zip(NAMES, (discriminator_loss, generator_loss), strict=True)),
    "optimizer": dict(zip(NAMES, (make_discriminators, make_generators), strict=True)),
}
TRAIN: dict[str, Any] = {"global_batch": BATCH, "max_steps": UPDATES}


@dataclass
class Seen:
    """What one rank saw."""

    lines: list[Mapping[str, Any]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    evaluation: Mapping[str, float] | None = None


def train(directory: str, settings: dict[str, Any], load: str | None = None, stop: int | None = None) -> Seen:
    seen, model = Seen(), Gan()

    def asks(trainer: Trainer, info: StepInfo) -> None:
        if info.step == stop and trainer.world.rank == trainer.world.size - 1:
            trainer.stop("enough")

    config = config_of(Case(directory, {"train": {**TRAIN, **settings}}))
    with Trainer(model, config, Points(), eval_data=Points(), callbacks=[asks], **OPTIONS) as trainer:
        if load is not None:
            trainer.load(load)
        for info in trainer.steps():
            assert info.logged is not None
            seen.lines.append(info.logged)
            seen.evaluation = info.evaluation
            if info.step == 2:
                trainer.save()
        seen.weights = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(p.requires_grad for p in model.parameters())
    return seen


def by_hand() -> tuple[dict[str, list[float]], dict[str, Tensor]]:
    """Five updates as one would write them; each learner's mean loss, and the weights."""
    model, losses = Gan(), dict[str, list[float]]({name: [] for name in NAMES})
    optimizers = dict(zip(NAMES, (make_discriminators(model), make_generators(model)), strict=True))
    order = epoch_order(40, 0, 0, shuffle=True)
    for update in range(UPDATES):
        rows = [Points()[i] for i in order[update * BATCH : (update + 1) * BATCH].tolist()]
        batch = torch.utils.data.default_collate(rows)
        for name in NAMES:
            loss = OPTIONS["loss"][name](model, batch).total / BATCH
            model.zero_grad()
            loss.backward()
            optimizers[name].step()
            losses[name].append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("micro", ["auto", 2])
def test_the_numbers_are_those_of_a_loop_by_hand(ranks: RankPool, tmp_path: Path, world: int, micro: int | str) -> None:
    losses, weights = by_hand()
    for seen in ranks.run(world, train, fresh(tmp_path), {"micro_batch": micro}):
        for name in NAMES:
            logged = [line[f"{name}/loss"] for line in seen.lines]
            torch.testing.assert_close(logged, losses[name], rtol=0, atol=1e-10)
        for line in seen.lines:
            assert line["loss"] == pytest.approx(sum(line[f"{name}/loss"] for name in NAMES), rel=1e-15)
            assert 0 <= line["discriminator/hits"] <= 1
            assert line["lr"] == line["discriminator/lr"] == 0.02 and line["generator/lr"] == 0.01
            assert line["grad_norm"] == line["discriminator/grad_norm"] != line["generator/grad_norm"] > 0
        assert largest_difference(seen.weights, weights) < 1e-10
        model = Gan()
        model.load_state_dict(seen.weights)
        everything = torch.utils.data.default_collate([Points()[i] for i in range(40)])
        assert seen.evaluation is not None
        for name in NAMES:
            expected = float(OPTIONS["loss"][name](model, everything).total.detach()) / 40
            assert seen.evaluation[f"{name}/loss"] == pytest.approx(expected, rel=1e-12)


def test_a_stop_leaves_whole_windows(ranks: RankPool, tmp_path: Path) -> None:
    """The second rank's request is agreed on in the window after, when one learner has run its passes already."""
    stopped, _ = ranks.run(2, train, fresh(tmp_path), {}, None, 3)
    whole, _ = ranks.run(2, train, fresh(tmp_path), {"max_steps": 3})
    assert [line["step"] for line in stopped.lines] == [1, 2, 3]
    assert largest_difference(stopped.weights, whole.weights) == 0


def test_a_checkpoint_holds_both(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    whole, _ = ranks.run(2, train, directory, {})
    for world, tolerance in ((2, 0.0), (1, 1e-10)):
        checkpoint = f"{directory}/checkpoints/step_2"
        rest, *_ = ranks.run(world, train, fresh(tmp_path), {}, checkpoint)
        assert [line["step"] for line in rest.lines] == [3, 4, 5]
        assert largest_difference(rest.weights, whole.weights) <= tolerance


def spoilt_generator_loss(model: Any, batch: Batch) -> Loss:
    """NaN for the window with row 3 of the first epoch's order."""
    loss = generator_loss(model, batch)
    bad = Points()[int(epoch_order(40, 0, 0, shuffle=True)[BATCH + 1])]["noise"]
    return Loss(loss.total * torch.where((batch["noise"] == bad).all(1).any(), float("nan"), 1.0))


def train_spoilt(directory: str, non_finite: str) -> list[Mapping[str, Any]]:
    config = config_of(Case(directory, {"train": {**TRAIN, "non_finite": non_finite}}))
    options = {**OPTIONS, "loss": {**OPTIONS["loss"], "generator": spoilt_generator_loss}}
    with Trainer(Gan(), config, Points(), **options) as trainer:
        lines = [info.logged for info in trainer.steps() if info.logged is not None]
        model: Any = trainer.model
        assert all(torch.isfinite(p).all() for p in model.parameters())
    return lines


def test_a_window_in_which_one_of_them_is_skipped_does_not_count(ranks: RankPool, tmp_path: Path) -> None:
    for lines in ranks.run(2, train_spoilt, fresh(tmp_path), "skip"):
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
        assert [line["skipped"] for line in lines] == [0, 1, 1, 1, 1]
        assert all(line["generator/loss"] > 0 for line in lines)


def test_or_ends_the_run_by_name(ranks: RankPool, tmp_path: Path) -> None:
    for ending in failures_of(ranks, 2, train_spoilt, fresh(tmp_path), "stop"):
        assert ending.name == "NonFiniteError"
        assert "the gradient of update 2 of generator is NaN" in ending.message


def train_lopsided(directory: str, overlap: bool) -> None:
    options = dict(OPTIONS)
    if overlap:
        everything = lambda model: torch.optim.SGD(model.parameters(), 0.1)  # noqa: E731
        options["optimizer"] = {**OPTIONS["optimizer"], "generator": everything}
    else:
        other = torch.optim.SGD(Gan().generator.parameters(), 0.1)
        options["optimizer"] = {**OPTIONS["optimizer"], "generator": other}
    with Trainer(Gan(), config_of(Case(directory, {"train": TRAIN})), Points(), **options) as trainer:
        trainer.fit()


@pytest.mark.parametrize(
    ("overlap", "named"),
    [(True, "discriminator.0.bias is in the optimizers of both"), (False, "holds none of the model's parameters")],
)
def test_optimizers_own_parameters_and_share_none(ranks: RankPool, tmp_path: Path, overlap: bool, named: str) -> None:
    for ending in failures_of(ranks, 2, train_lopsided, fresh(tmp_path), overlap):
        assert ending.name == "ConfigError"
        assert named in ending.message
