"""Parameters without gradient: on no rank, on one, now and then. They neither hang nor hide, nor change the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from drumline import Trainer
from tests.rank_pool import RankPool
from tests.ranks.branches import Branched, Branches, Rows, Seen, squared_error, train_branches, warnings_logged
from tests.ranks.failing import failures_of
from tests.ranks.training import Case, config_of, fresh, largest_difference

NEVER = [False]
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"name": "adamw", "weight_decay": 0.1, "decay_all": True},
]
# Rows of a window of 12, of which rank 0 of two takes the first six, in three passes of two where it accumulates.
ON_RANK_0 = [True] * 6 + [False] * 6
IN_ONE_PASS = [True] * 2 + [False] * 10
EVERY_SECOND = [True] * 12 + [False] * 12
STOPS = [True] * 36 + [False] * 36
STARTS = [False] * 36 + [True] * 36


def run(ranks: RankPool, world: int, cases: list[Branched]) -> list[list[Seen]]:
    """What each rank saw, by case; ranks agree on losses and weights."""
    by_case = [list(seen) for seen in zip(*ranks.run(world, train_branches, cases), strict=True)]
    for seen in by_case:
        for other in seen[1:]:
            assert other.losses == seen[0].losses
            assert largest_difference(other.weights, seen[0].weights) == 0
            assert other.warnings == []
    return by_case


def cases_of(folder: Path, uses: list[bool], world: int, **options: Any) -> list[Branched]:
    return [
        Branched(
            str(folder / f"{world}-{number}-{micro}"),
            {"global_batch": 12, "max_steps": 6, "micro_batch": micro, "optimizer": optimizer},
            uses,
            **options,
        )
        for number, optimizer in enumerate(OPTIMIZERS)
        for micro in ("auto", 2)
    ]


@pytest.mark.parametrize("reentrant", [None, False], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(
    ("uses", "where", "update"),
    [
        pytest.param(NEVER, "on all ranks", 1, id="never"),
        pytest.param(ON_RANK_0, "on rank 1 only", 1, id="rank-0"),
        pytest.param(IN_ONE_PASS, "on rank 1 only", 1, id="one-pass"),
        pytest.param(EVERY_SECOND, "on all ranks", 2, id="every-second"),
        pytest.param(STOPS, "on all ranks", 4, id="stops"),
        pytest.param(STARTS, "on all ranks", 1, id="starts"),
    ],
)
def test_same_numbers_and_one_warning(
    ranks: RankPool, tmp_path: Path, uses: list[bool], where: str, update: int, reentrant: bool | None
) -> None:
    alone = run(ranks, 1, cases_of(tmp_path, uses, 1))
    both = run(ranks, 2, cases_of(tmp_path, uses, 2, reentrant=reentrant))
    for (one,), (zero, _) in zip(alone, both, strict=True):
        torch.testing.assert_close(zero.losses, one.losses, rtol=0, atol=1e-10)
        assert largest_difference(zero.weights, one.weights) < 1e-10
        (warning,) = zero.warnings
        assert f"update {update} " in warning
        assert f"side.weight ({where}), side.bias ({where})" in warning
        assert "trunk" not in warning and "head" not in warning
        if where == "on all ranks":
            (warning,) = one.warnings
            assert f"update {update} " in warning and "side.weight" in warning and "head" not in warning
        else:
            assert one.warnings == []


@pytest.mark.parametrize("uses", [NEVER, ON_RANK_0, EVERY_SECOND], ids=["never", "rank-0", "every-second"])
def test_torchs_own_search_gives_the_same_numbers(ranks: RankPool, tmp_path: Path, uses: list[bool]) -> None:
    alone = run(ranks, 1, cases_of(tmp_path, uses, 1))
    both = run(ranks, 2, cases_of(tmp_path, uses, 2, parallel={"kind": "ddp", "find_unused": "always"}))
    for (one,), (zero, _) in zip(alone, both, strict=True):
        torch.testing.assert_close(zero.losses, one.losses, rtol=0, atol=1e-10)
        assert largest_difference(zero.weights, one.weights) < 1e-10


@pytest.mark.parametrize("uses", [NEVER, ON_RANK_0], ids=["never", "rank-0"])
def test_never_makes_them_an_error_of_all_ranks(ranks: RankPool, tmp_path: Path, uses: list[bool]) -> None:
    case = Branched(
        fresh(tmp_path), {"global_batch": 12, "max_steps": 6}, uses, parallel={"kind": "ddp", "find_unused": "never"}
    )
    for ending in failures_of(ranks, 2, train_branches, [case]):
        assert "no gradient for side.weight, side.bias" in ending.message


def test_reentrant_checkpointing_works_while_every_layer_is_used(ranks: RankPool, tmp_path: Path) -> None:
    uses = [True]
    ((one,),) = run(ranks, 1, [Branched(fresh(tmp_path), {"global_batch": 12, "max_steps": 6}, uses)])
    cases = [Branched(str(tmp_path / "two"), {"global_batch": 12, "max_steps": 6}, uses, reentrant=True)]
    ((zero, _),) = run(ranks, 2, cases)
    torch.testing.assert_close(zero.losses, one.losses, rtol=0, atol=1e-10)
    assert zero.warnings == []


@pytest.mark.parametrize("find_unused", ["auto", "always"])
@pytest.mark.parametrize("uses", [NEVER, ON_RANK_0], ids=["never", "rank-0"])
def test_reentrant_checkpointing_hides_layers_and_says_so(
    ranks: RankPool, tmp_path: Path, uses: list[bool], find_unused: str
) -> None:
    parallel = {"kind": "ddp", "find_unused": find_unused}
    case = Branched(fresh(tmp_path), {"global_batch": 12, "max_steps": 6}, uses, parallel, reentrant=True)
    for ending in failures_of(ranks, 2, train_branches, [case]):
        assert "use_reentrant=False" in ending.message


class ThreeAndOne(IterableDataset[dict[str, Tensor]]):
    """Shard 0 of two has three rows; shard 1 has one, which alone uses the side layer."""

    def __init__(self, rows: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        self._rows = rows

    def shard(self, num_shards: int, index: int) -> ThreeAndOne:
        assert num_shards == 2
        return ThreeAndOne(self._rows[:3] if index == 0 else self._rows[3:])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        rows = Rows(4, [False, False, False, True])
        return (rows[i] for i in self._rows)


def train_on_stream(directory: str) -> Seen:
    case = Case(directory, {"train": {"global_batch": 2, "epochs": 1, "optimizer": OPTIMIZERS[1]}})
    losses = []
    with (
        warnings_logged() as warnings,
        Trainer(Branches(), config_of(case), ThreeAndOne(), loss=squared_error) as trainer,
    ):
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        return Seen(losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}, warnings)


def test_a_rank_that_only_takes_part_uses_nothing(ranks: RankPool, tmp_path: Path) -> None:
    """Once its stream is dry, rank 1 goes on with its last row; the side layer must not be updated for that."""
    model = Branches()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05, betas=(0.9, 0.95), weight_decay=0.1)
    rows, losses = list(ThreeAndOne()), []
    for window in ([rows[0], rows[3]], [rows[1]], [rows[2]]):
        loss = squared_error(model, torch.utils.data.default_collate(window))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen, other = ranks.run(2, train_on_stream, fresh(tmp_path))
    torch.testing.assert_close(seen.losses, losses, rtol=0, atol=1e-10)
    assert largest_difference(seen.weights, model.state_dict()) < 1e-10
    assert largest_difference(seen.weights, other.weights) == 0
    assert [("update 1 " in warning, "on rank 0 only" in warning) for warning in seen.warnings] == [(True, True)]
