"""Several replicas in one process: the numbers of one, whatever their number, and one answer for all that surrounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

from drumline import Trainer
from drumline.data.stream import StridedStream
from drumline.engine.process import seed_window
from drumline.parallel.data_parallel import Replicated
from drumline.parallel.strategy import Batch
from drumline.tasks.classification import Classification
from tests.ranks.branches import Branched, train_branched
from tests.ranks.test_batch_norm import Normalised, squared_error
from tests.ranks.test_gan import OPTIONS, Gan, Points
from tests.ranks.training import (
    LENGTH,
    WIDTH,
    Case,
    MaskedRegression,
    MaskedRows,
    Record,
    config_of,
    fresh,
    largest_difference,
    make_model,
    train,
)

SGD: dict[str, Any] = {"global_batch": 8, "max_steps": 10}
SINGLE: dict[str, Any] = {"parallel": {"kind": "single"}}
REPLICAS = [1, 2, 3, 4]


def replicated(number: int, **settings: Any) -> dict[str, Any]:
    """The section of a config."""
    return {"parallel": {"kind": "data_parallel", "replicas": number, **settings}}


def both(folder: Path, number: int, settings: dict[str, Any], **options: Any) -> tuple[Record, Record]:
    """The same run under single and over replicas."""
    case = {"train": {**SGD, **settings}}
    alone = train(Case(fresh(folder), {**case, **SINGLE}, **options))
    return alone, train(Case(fresh(folder), {**case, **replicated(number)}, **options))


def assert_equal(found: Record, expected: Record) -> None:
    torch.testing.assert_close(found.losses, expected.losses, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.norms, expected.norms, rtol=0, atol=1e-10)
    assert found.rates == expected.rates
    assert largest_difference(found.weights, expected.weights) < 1e-10


def strategy_of(trainer: Trainer) -> Replicated:
    strategy = trainer._run.strategy
    assert isinstance(strategy, Replicated)
    return strategy


def assert_replicas_equal(trainer: Trainer) -> None:
    first, *others = strategy_of(trainer)._replicas
    for other in others:
        assert largest_difference(other.model.state_dict(), first.model.state_dict()) == 0


@pytest.mark.parametrize("number", REPLICAS)
@pytest.mark.parametrize("micro", ["auto", 1, 3])
def test_ten_updates_are_those_of_single(tmp_path: Path, number: int, micro: int | str) -> None:
    """37 rows in updates of 8 end in one of 5, of uneven token counts."""
    alone, found = both(tmp_path, number, {"micro_batch": micro})
    assert_equal(found, alone)
    assert sorted(found.trained[:37]) == list(range(37))


@pytest.mark.parametrize("number", [2, 4])
def test_fewer_rows_than_replicas_use_fewer(tmp_path: Path, number: int) -> None:
    alone, found = both(tmp_path, number, {"global_batch": 3}, num_rows=7)
    assert_equal(found, alone)
    assert found.trained == alone.trained


@pytest.mark.parametrize(
    "settings",
    [
        {"max_norm": 0.1},
        {"optimizer": {"name": "adamw", "rules": [{"pattern": "0.*", "freeze": True}]}},
        {"optimizer": {"name": "adamw", "weight_decay": 0.1}, "schedule": {"name": "cosine", "warmup_steps": 2}},
        {"schedule": {"name": "torch", "scheduler": "StepLR", "options": {"step_size": 2, "gamma": 0.5}}},
        {"averaging": {"kind": "ema", "decay": 0.5}},
    ],
    ids=["clipping", "frozen", "cosine", "scheduler", "average"],
)
def test_so_are_they_with_all_that_an_update_can_have(tmp_path: Path, settings: dict[str, Any]) -> None:
    alone, found = both(tmp_path, 3, {"micro_batch": 2, **settings}, aux=True, num_eval_rows=11)
    assert_equal(found, alone)


def evaluated(folder: Path, parallel: dict[str, Any], size: int, **train_settings: Any) -> Mapping[str, float]:
    case = Case(fresh(folder), {"train": {**SGD, **train_settings}, "evaluate": {"batch": 2}, **parallel})
    task = MaskedRegression([])
    with Trainer(make_model(), config_of(case), MaskedRows(37), loss=task, eval_data=MaskedRows(size)) as trainer:
        result = trainer.fit()
    assert result.evaluation is not None
    return result.evaluation


@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize("averaging", [None, {"kind": "swa"}])
def test_an_evaluation_counts_each_row_once_on_every_replicas_best_weights(
    tmp_path: Path, size: int, averaging: dict[str, Any] | None
) -> None:
    alone = evaluated(tmp_path, SINGLE, size, averaging=averaging)
    found = evaluated(tmp_path, replicated(3), size, averaging=averaging)
    assert found["count"] == size
    assert found == pytest.approx(alone, rel=1e-12)


def test_after_an_evaluation_of_averages_training_goes_on_from_the_weights(tmp_path: Path) -> None:
    case = {"train": {**SGD, "averaging": {"kind": "swa"}}, "evaluate": {"every": 2}}
    alone = train(Case(fresh(tmp_path), {**case, **SINGLE}, num_eval_rows=5))
    found = train(Case(fresh(tmp_path), {**case, **replicated(3)}, num_eval_rows=5))
    assert_equal(found, alone)


ROWS = torch.arange(63, dtype=torch.float64).reshape(21, 3)


class Ids(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(ROWS)


@pytest.mark.parametrize("number", [2, 3])
def test_predictions_keep_the_order_of_the_rows(tmp_path: Path, number: int) -> None:
    rows = TensorDataset(ROWS, torch.zeros(21).long())
    config = config_of(
        Case(fresh(tmp_path), {"train": SGD, "evaluate": {"batch": 2}, **replicated(number)}),
    )
    with Trainer(nn.Linear(3, 3).double(), config, rows, loss=Classification(3)) as trainer:
        for size in (1, 2, 21):
            found = trainer.predict(TensorDataset(ROWS[:size]), forward=lambda model, batch: batch[0])
            assert torch.equal(torch.stack(found), ROWS[:size])
        found = trainer.predict(Ids(), forward=lambda model, batch: batch)
        assert torch.equal(torch.stack(found), ROWS)


def accuracy(folder: Path, parallel: dict[str, Any]) -> Mapping[str, float]:
    torch.manual_seed(2)
    rows = TensorDataset(ROWS, torch.arange(21) % 3)
    case = Case(fresh(folder), {"train": {**SGD, "lr": 1e-4}, "evaluate": {"batch": 2}, **parallel})
    with Trainer(nn.Linear(3, 3).double(), config_of(case), rows, loss=Classification(3), eval_data=rows) as trainer:
        return trainer.evaluate()


def test_metrics_are_merged_over_the_shards(tmp_path: Path) -> None:
    alone = accuracy(tmp_path, SINGLE)
    assert {"accuracy", "loss"} <= alone.keys()
    assert accuracy(tmp_path, replicated(4)) == pytest.approx(alone, rel=1e-12)


class Stream(IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Any:
        rows = MaskedRows(37)
        return (rows[i] for i in range(37))


def test_a_stream_is_cut_and_read_to_its_end(tmp_path: Path) -> None:
    case = {"train": {"global_batch": 6, "epochs": 1}}
    seen: dict[str, list[int]] = {}
    for name, parallel in (("alone", SINGLE), ("all", replicated(3))):
        task = MaskedRegression(seen.setdefault(name, []))
        config = config_of(Case(fresh(tmp_path), {**case, **parallel}))
        stream = StridedStream(Stream())
        with Trainer(make_model(), config, stream, loss=task, eval_data=stream) as trainer:
            result = trainer.fit()
            assert result.evaluation is not None and result.evaluation["count"] == 37
    assert sorted(seen["all"]) == sorted(seen["alone"]) == sorted(2 * list(range(37)))


def gan(folder: Path, parallel: dict[str, Any], micro: int | str) -> tuple[list[Mapping[str, Any]], dict[str, Tensor]]:
    model, lines = Gan(), []
    settings = {"global_batch": 7, "max_steps": 5, "micro_batch": micro}
    config = config_of(Case(fresh(folder), {"train": settings, **parallel}))
    with Trainer(model, config, Points(), **OPTIONS) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            lines.append(info.logged)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    return lines, model.state_dict()


@pytest.mark.parametrize("micro", ["auto", 2])
def test_two_learners_take_turns(tmp_path: Path, micro: int | str) -> None:
    lines, weights = gan(tmp_path, SINGLE, micro)
    found_lines, found = gan(tmp_path, replicated(3), micro)
    assert largest_difference(found, weights) < 1e-10
    for line, other in zip(found_lines, lines, strict=True):
        for name in ("discriminator/loss", "generator/loss", "generator/grad_norm", "discriminator/hits"):
            assert line[name] == pytest.approx(other[name], abs=1e-10)


@pytest.mark.parametrize("uses", [[False], [True] * 6 + [False] * 6, [True] * 12 + [False] * 12])
def test_unused_parameters_are_named_and_change_nothing(tmp_path: Path, uses: list[bool]) -> None:
    settings = {"global_batch": 12, "max_steps": 6, "optimizer": {"name": "adamw", "weight_decay": 0.1}}
    alone = train_branched(Branched(fresh(tmp_path), settings, uses, SINGLE["parallel"]))
    (tmp_path / "other").mkdir()
    found = train_branched(Branched(fresh(tmp_path / "other"), settings, uses, replicated(2)["parallel"]))
    torch.testing.assert_close(found.losses, alone.losses, rtol=0, atol=1e-10)
    assert largest_difference(found.weights, alone.weights) < 1e-10
    (warning,) = found.warnings
    assert "side.weight" in warning and "trunk" not in warning


def test_all_take_the_first_replicas_buffers(tmp_path: Path) -> None:
    """The first shard's rows alone move its statistics, as rank 0's do."""
    config = config_of(Case(fresh(tmp_path), {"train": {**SGD, "shuffle": False, "max_steps": 1}, **replicated(2)}))
    with Trainer(Normalised(), config, MaskedRows(36), loss=squared_error) as trainer:
        trainer.fit()
        assert_replicas_equal(trainer)
        assert trainer.model.ticks == 1
        first = torch.stack([MaskedRows(36)[i]["x"] for i in range(4)])
        expected = first.mean((0, 2)) * 0.1
        torch.testing.assert_close(trainer.model.get_buffer("norm.running_mean"), expected)


def test_or_keep_their_own_until_something_looks(tmp_path: Path) -> None:
    config = config_of(Case(fresh(tmp_path), {"train": SGD, **replicated(2, broadcast_buffers=False)}))
    with Trainer(Normalised(), config, MaskedRows(36), loss=squared_error, eval_data=MaskedRows(4)) as trainer:
        next(trainer.steps())
        first, second = strategy_of(trainer)._replicas
        means = [replica.model.get_buffer("norm.running_mean") for replica in (first, second)]
        assert not torch.equal(*means)
        trainer.evaluate()
        assert_replicas_equal(trainer)


def draw(model: Any, batch: Batch) -> Tensor:
    """Notes what dropout lets through."""
    mask = nn.functional.dropout(torch.ones(LENGTH), 0.5)
    model.kept.append(mask)
    error: Tensor = (model(batch["x"]).squeeze(-1) * mask - batch["y"]).square().mean()
    return error


def test_each_shard_draws_what_a_rank_would(tmp_path: Path) -> None:
    """Also a second learner, which goes on where its shard's first one stopped."""
    model: Any = make_model()
    model.kept = []
    config = config_of(Case(fresh(tmp_path), {"train": {**SGD, "max_steps": 1}, **replicated(2)}))
    halves: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "a": lambda model: torch.optim.SGD(model[0].parameters(), 0.1),
        "b": lambda model: torch.optim.SGD(model[2].parameters(), 0.1),
    }
    with Trainer(model, config, MaskedRows(36), loss={"a": draw, "b": draw}, optimizer=halves) as trainer:
        kept: list[Any] = [replica.model.kept for replica in strategy_of(trainer)._replicas]
        trainer.fit()
    with torch.random.fork_rng():
        for shard, found in enumerate(kept):
            seed_window(0, 0, 0, 0, shard)
            expected = [nn.functional.dropout(torch.ones(LENGTH), 0.5) for _ in range(2)]
            assert torch.equal(torch.stack(found), torch.stack(expected)), shard


def resumed(folder: Path, load: str | None, parallel: dict[str, Any], steps: int) -> tuple[list[float], Any, str]:
    settings = {**SGD, "max_steps": steps, "lr": 0.01, "optimizer": {"name": "adamw"}, "averaging": {"kind": "ema"}}
    config = config_of(Case(fresh(folder), {"train": settings, **parallel}, aux=True))
    losses = []
    with Trainer(make_model(), config, MaskedRows(37), loss=MaskedRegression([])) as trainer:
        if load is not None:
            trainer.load(load)
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        path = str(trainer.save())
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return losses, weights, path


def test_checkpoints_go_to_and_from_single(tmp_path: Path) -> None:
    losses, weights, _ = resumed(tmp_path, None, SINGLE, 8)
    for first, second in ((SINGLE, replicated(3)), (replicated(3), SINGLE), (replicated(2), replicated(4))):
        begun, _, path = resumed(tmp_path, None, first, 4)
        rest, found, _ = resumed(tmp_path, path, second, 8)
        torch.testing.assert_close([*begun, *rest], losses, rtol=0, atol=1e-10)
        assert largest_difference(found, weights) < 1e-10


def test_it_runs_in_a_thread(tmp_path: Path) -> None:
    found: list[Record] = []
    case = Case(fresh(tmp_path), {"train": SGD, **replicated(2)}, num_eval_rows=5)
    thread = threading.Thread(target=lambda: found.append(train(case)))
    thread.start()
    thread.join()
    assert_equal(found[0], train(Case(fresh(tmp_path), {"train": SGD, **SINGLE}, num_eval_rows=5)))


def test_gradients_of_mixed_types_lie_in_small_buckets(tmp_path: Path) -> None:
    """A bucket of 64 bytes holds no more than one of these."""
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    weights = []
    for parallel in (SINGLE, replicated(2, bucket_mb=64 / 2**20)):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), Halfway(), nn.Linear(8, 1))
        model[0].double()
        config = config_of(Case(fresh(tmp_path), {"train": {**SGD, "precision": "fp32"}, **parallel}))
        with Trainer(model, config, MaskedRows(37), loss=Single32([])) as trainer:
            trainer.fit()
            if parallel is not SINGLE:
                (flat,) = strategy_of(trainer)._replicas[0].flats.values()
                assert [bucket.dtype for bucket in flat.buckets] == [torch.float64] * 2 + [torch.float32] * 2
            weights.append({name: value.double().clone() for name, value in model.state_dict().items()})
    assert largest_difference(*weights) < 1e-5


class Halfway(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class Single32(MaskedRegression):
    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().forward(model, batch).double()
