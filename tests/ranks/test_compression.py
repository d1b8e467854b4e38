"""Compressed gradients: close to the exact ones, the same on all ranks, and no harm from what is skipped or unused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Loss, Trainer
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankPool
from tests.ranks.branches import warnings_logged
from tests.ranks.training import (
    WIDTH,
    Case,
    MaskedRegression,
    MaskedRows,
    config_of,
    fresh,
    largest_difference,
)

POWER_SGD: dict[str, Any] = {"compression": "power_sgd", "power_sgd_rank": 2, "power_sgd_start": 2}
COMPRESSED: list[dict[str, Any]] = [{"compression": "bf16"}, {"compression": "fp16"}, POWER_SGD]
NAMES = ["bf16", "fp16", "power_sgd"]


class Wide(nn.Module):
    """Layers that are worth compressing; the middle one runs only for batches with a row that `uses` it."""

    def __init__(self, uses: Sequence[bool]) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.trunk, self.middle, self.head = nn.Linear(WIDTH, 24), nn.Linear(24, 24), nn.Linear(24, 1)
        self.uses = uses

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        hidden = torch.tanh(self.trunk(x))
        if any(self.uses[int(i) % len(self.uses)] for i in ids):
            hidden = hidden + torch.tanh(self.middle(hidden))
        outputs: Tensor = self.head(hidden)
        return outputs.squeeze(-1)


@dataclass(frozen=True)
class Sent:
    """One run; `parallel` says how its gradients travel."""

    directory: str
    parallel: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    uses: Sequence[bool] = (True,)
    factor: float = 1.0
    """On the loss; the rate is divided by it, so that nothing but the size of gradients changes."""
    spoilt: int | None = None
    """A row whose loss is infinite."""
    single: bool = False
    """In float32."""
    num_rows: int = 72
    checkpoint: str | None = None
    save_at: int | None = None


@dataclass
class Arrived:
    """What one rank saw of it."""

    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    skipped: int = 0


class Scaled(MaskedRegression):
    """Its loss times a factor, infinite where one row is in the batch."""

    def __init__(self, case: Sent) -> None:
        super().__init__([])
        self._case = case

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch["x"].to(next(model.parameters())), batch["id"])
        return outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        total = super().loss(outputs, batch).total.to(outputs.dtype) * self._case.factor
        if self._case.spoilt in batch["id"].tolist():
            total = total * math.inf
        return Loss(total)


def send(cases: Sequence[Sent]) -> list[Arrived]:
    """Run the cases one after the other on this rank."""
    return [send_one(case) for case in cases]


def send_one(case: Sent) -> Arrived:
    arrived = Arrived()
    model: nn.Module = Wide(case.uses).double()
    train = {"global_batch": 12, "max_steps": 8, "lr": 0.05 / case.factor, **case.config.get("train", {})}
    parallel = {"kind": "ddp", "timeout_s": 20, **case.parallel}
    config = config_of(Case(case.directory, {"train": train, "parallel": parallel}))
    rows = MaskedRows(case.num_rows)
    with (
        warnings_logged() as arrived.warnings,
        Trainer(model.float() if case.single else model, config, rows, loss=Scaled(case)) as trainer,
    ):
        if case.checkpoint is not None:
            trainer.load(Path(case.checkpoint))
        for info in trainer.steps():
            if info.logged is not None:  # a skipped update has no line
                arrived.losses.append(info.logged["loss"] / case.factor)
                arrived.skipped = info.logged["skipped"]
            if info.step == case.save_at:
                trainer.save()
        arrived.weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return arrived


def run(ranks: RankPool, world: int, *cases: Sent) -> list[Arrived]:
    """What rank 0 saw, by case; all ranks have equal weights to the bit."""
    by_case = []
    for first, *others in zip(*ranks.run(world, send, cases), strict=True):
        for other in others:
            assert largest_difference(other.weights, first.weights) == 0
            assert other.losses == first.losses
        by_case.append(first)
    return by_case


@pytest.mark.parametrize("micro", ["auto", 2])
@pytest.mark.parametrize("bucket_mb", [25, 1e-4], ids=["one-bucket", "many-buckets"])
def test_half_precision_is_close_and_not_exact(
    ranks: RankPool, tmp_path: Path, micro: int | str, bucket_mb: float
) -> None:
    ways: list[dict[str, Any]] = [{}, *COMPRESSED[:2]]
    config = {"train": {"micro_batch": micro}}
    exact, bf16, fp16 = run(
        ranks, 2, *(Sent(str(tmp_path / str(n)), {"bucket_mb": bucket_mb, **way}, config) for n, way in enumerate(ways))
    )
    moved = largest_difference(exact.weights, Wide([True]).double().state_dict())
    for arrived, bits in ((bf16, 8), (fp16, 11)):
        difference = largest_difference(arrived.weights, exact.weights)
        assert 0 < difference < 4 * 2.0**-bits * moved
        torch.testing.assert_close(arrived.losses, exact.losses, rtol=2.0**-bits, atol=0)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40], ids=["small", "large"])
def test_gradients_beyond_float16s_range_travel_in_it(ranks: RankPool, tmp_path: Path, factor: float) -> None:
    way = {"compression": "fp16"}
    plain, scaled = run(ranks, 2, Sent(str(tmp_path / "1"), way), Sent(str(tmp_path / "2"), way, factor=factor))
    assert largest_difference(scaled.weights, plain.weights) < 1e-12


def test_before_its_start_power_sgd_is_no_compression_to_the_bit(ranks: RankPool, tmp_path: Path) -> None:
    exact, waits, starts = run(
        ranks,
        3,
        Sent(str(tmp_path / "1"), {}),
        Sent(str(tmp_path / "2"), {**POWER_SGD, "power_sgd_start": 8}),
        Sent(str(tmp_path / "3"), {**POWER_SGD, "power_sgd_start": 7}),
    )
    assert waits.losses == exact.losses and largest_difference(waits.weights, exact.weights) == 0
    assert largest_difference(starts.weights, exact.weights) > 0


def test_power_sgd_learns_as_well(ranks: RankPool, tmp_path: Path) -> None:
    config = {"train": {"max_steps": 90, "lr": 0.02, "optimizer": {"name": "adamw", "weight_decay": 0.0}}}
    exact, arrived = run(
        ranks,
        2,
        Sent(str(tmp_path / "1"), {}, config, num_rows=24),
        Sent(str(tmp_path / "2"), POWER_SGD, config, num_rows=24),
    )
    first, last, reached = sum(exact.losses[:6]), sum(exact.losses[-6:]), sum(arrived.losses[-6:])
    assert last < 0.5 * first
    assert reached < last + 0.1 * (first - last)
    assert largest_difference(arrived.weights, exact.weights) > 1e-4


@pytest.mark.parametrize("micro", ["auto", 2])
def test_power_sgd_does_not_depend_on_the_number_of_ranks(ranks: RankPool, tmp_path: Path, micro: int | str) -> None:
    config = {"train": {"micro_batch": micro, "max_steps": 10}}
    (two,) = run(ranks, 2, Sent(fresh(tmp_path), POWER_SGD, config))
    for world in (3, 4):
        (more,) = run(ranks, world, Sent(fresh(tmp_path), POWER_SGD, config))
        torch.testing.assert_close(more.losses, two.losses, rtol=0, atol=1e-9)
        assert largest_difference(more.weights, two.weights) < 1e-9


@pytest.mark.parametrize("world", [2, 3])
def test_power_sgd_goes_on_from_a_checkpoint(ranks: RankPool, tmp_path: Path, world: int) -> None:
    folder = tmp_path / "saved"
    (whole,) = run(ranks, 2, Sent(str(folder), POWER_SGD, save_at=5))
    (checkpoint,) = (folder / "checkpoints").iterdir()
    (rest,) = run(ranks, world, Sent(fresh(tmp_path), POWER_SGD, checkpoint=str(checkpoint)))
    torch.testing.assert_close(rest.losses, whole.losses[5:], rtol=0, atol=1e-9)
    assert largest_difference(rest.weights, whole.weights) < 1e-9


@pytest.mark.parametrize("way", COMPRESSED, ids=NAMES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_overflow_on_one_rank_is_skipped_by_all_and_forgotten(
    ranks: RankPool, tmp_path: Path, way: dict[str, Any], precision: str
) -> None:
    train = {"shuffle": False, "non_finite": "skip", "precision": precision, "max_steps": 7}
    # Row 42 is rank 1's in the fourth window of six an epoch. In fp16 the first loss scale is too large besides.
    spoilt, clean = run(
        ranks,
        2,
        Sent(str(tmp_path / "1"), way, {"train": train}, spoilt=42, single=precision == "fp16"),
        Sent(str(tmp_path / "2"), way, {"train": {**train, "max_steps": 2}}, single=precision == "fp16"),
    )
    assert spoilt.skipped == clean.skipped + 1
    assert spoilt.losses[:2] == clean.losses
    assert all(math.isfinite(loss) for loss in spoilt.losses) and len(spoilt.losses) == 7
    assert all(bool(torch.isfinite(value).all()) for value in spoilt.weights.values())


@pytest.mark.parametrize("way", COMPRESSED, ids=NAMES)
@pytest.mark.parametrize(
    ("uses", "where"),
    [
        ([False], "on all ranks"),
        ([True] * 6 + [False] * 6, "on rank 1 only"),
        ([True] * 36 + [False] * 36, "on all ranks"),
    ],
    ids=["never", "rank-0", "stops"],
)
@pytest.mark.parametrize("find_unused", ["auto", "always"])
def test_unused_parameters_are_told_of_and_no_harm(
    ranks: RankPool, tmp_path: Path, way: dict[str, Any], uses: list[bool], where: str, find_unused: str
) -> None:
    config = {"train": {"shuffle": False}}
    exact, arrived = run(
        ranks,
        2,
        Sent(str(tmp_path / "1"), {"find_unused": find_unused}, config, uses),
        Sent(str(tmp_path / "2"), {"find_unused": find_unused, **way}, config, uses),
    )
    assert arrived.warnings == exact.warnings
    if find_unused == "auto":
        (warning,) = arrived.warnings
        assert f"middle.weight ({where})" in warning
    torch.testing.assert_close(arrived.losses, exact.losses, rtol=0.02, atol=0)
    if not any(uses):
        before = Wide(uses).double().middle.state_dict()
        assert all(torch.equal(arrived.weights[f"middle.{name}"], value) for name, value in before.items())


@pytest.mark.parametrize("way", COMPRESSED, ids=NAMES)
def test_a_static_graph_and_copied_gradients_change_nothing(
    ranks: RankPool, tmp_path: Path, way: dict[str, Any]
) -> None:
    ways = [way, {**way, "static_graph": True}, {**way, "gradient_as_bucket_view": False}]
    first, *others = run(ranks, 2, *(Sent(str(tmp_path / str(n)), each) for n, each in enumerate(ways)))
    for other in others:
        assert largest_difference(other.weights, first.weights) < 1e-12
