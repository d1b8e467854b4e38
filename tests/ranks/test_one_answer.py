"""Promise 1: the same losses and weights whatever the number of processes and the split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.rank_pool import RankPool
from tests.ranks.training import Case, Record, fresh, largest_difference, train

TRAIN = {"global_batch": 8, "max_steps": 10}


def run(ranks: RankPool, folder: Path, world: int, micro: int | str, **case: object) -> Record:
    config = {"train": {**TRAIN, "micro_batch": micro}}
    records = ranks.run(world, train, Case(fresh(folder), config, **case))  # type: ignore[arg-type]
    for record in records[1:]:
        assert record.losses == records[0].losses
        assert largest_difference(record.weights, records[0].weights) == 0
    return records[0]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("case", [{}, {"aux": True}, {"lengths": (0, 0, 0, 0, 6, 2)}], ids=["tokens", "aux", "empty"])
def test_losses_and_weights_do_not_depend_on_the_split(
    ranks: RankPool, tmp_path: Path, world: int, case: dict[str, object]
) -> None:
    reference = run(ranks, tmp_path, 1, "auto", **case)
    assert len(reference.losses) == 10 and len(set(reference.losses)) == 10
    for micro in (1, 2, 4):
        record = run(ranks, tmp_path, world, micro, **case)
        torch.testing.assert_close(record.losses, reference.losses, rtol=0, atol=1e-10)
        assert largest_difference(record.weights, reference.weights) < 1e-10


def test_reference_is_the_hand_written_loop(ranks: RankPool, tmp_path: Path) -> None:
    from drumline.data.order import epoch_order
    from tests.ranks.training import MaskedRegression, MaskedRows, make_model

    record = run(ranks, tmp_path, 2, 2)
    model, rows, task = make_model(), MaskedRows(37), MaskedRegression([])
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses: list[float] = []
    orders = [epoch_order(37, 0, epoch, shuffle=True) for epoch in (0, 1)]
    windows = [order[i : i + 8] for order in orders for i in range(0, 37, 8)][:10]
    assert [len(window) for window in windows] == [8, 8, 8, 8, 5] * 2
    for window in windows:
        batch = torch.utils.data.default_collate([rows[int(i)] for i in window])
        loss = task.loss(task.forward(model, batch), batch).total / task.count(batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(record.losses, losses, rtol=0, atol=1e-10)
    assert largest_difference(record.weights, model.state_dict()) < 1e-10


def test_fewer_samples_than_ranks(ranks: RankPool, tmp_path: Path) -> None:
    config = {"train": {"global_batch": 3, "max_steps": 6}}
    one, *_ = ranks.run(1, train, Case(fresh(tmp_path), config, num_rows=4))
    four = ranks.run(4, train, Case(fresh(tmp_path), config, num_rows=4))
    torch.testing.assert_close(four[0].losses, one.losses, rtol=0, atol=1e-10)
    assert largest_difference(four[0].weights, one.weights) < 1e-10


def test_clipping_uses_the_true_global_norm(ranks: RankPool, tmp_path: Path) -> None:
    config = {"train": {**TRAIN, "max_norm": 0.05, "micro_batch": 2}}
    one, *_ = ranks.run(1, train, Case(fresh(tmp_path), config))
    three = ranks.run(3, train, Case(fresh(tmp_path), config))
    torch.testing.assert_close(three[0].norms, one.norms, rtol=0, atol=1e-10)
    assert min(one.norms) > 0.05
    assert largest_difference(three[0].weights, one.weights) < 1e-10


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("micro", [1, 3, "auto"])
def test_rates_count_completed_updates(ranks: RankPool, tmp_path: Path, world: int, micro: int | str) -> None:
    schedule = {"name": "cosine", "warmup_steps": 2}
    config = {"train": {"global_batch": 9, "max_steps": 4, "micro_batch": micro, "lr": 1.0, "schedule": schedule}}
    record, *_ = ranks.run(world, train, Case(fresh(tmp_path), config))
    assert record.rates == pytest.approx([0.5, 1.0, 1.0, 0.1], abs=1e-12)
