"""Shares by measured speed: the same windows, unequally cut; a slow rank gets fewer rows."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from drumline import Trainer
from drumline.engine import balance
from drumline.engine.balance import Balance
from tests.rank_pool import RankPool
from tests.ranks.test_each_sample_once import UnevenStream
from tests.ranks.test_resume import with_dropout
from tests.ranks.training import (
    Case,
    MaskedRegression,
    MaskedRows,
    config_of,
    fresh,
    largest_difference,
    make_model,
)

SLOW_S = 0.01
NUM_ROWS = 37


@dataclass
class Seen:
    """What one rank did."""

    rows: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)


def case_of(directory: str, kind: str = "measured", **parallel: Any) -> Case:
    train = {"global_batch": 16, "micro_batch": 4, "epochs": 2}
    return Case(directory, {"train": train, "parallel": {"kind": "ddp", "balance": kind, "timeout_s": 20, **parallel}})


def run(case: Case, model: nn.Module, data: Any = None) -> Seen:
    """Train on this rank."""
    seen = Seen()
    task = MaskedRegression(seen.rows)
    with Trainer(model, config_of(case), MaskedRows(NUM_ROWS) if data is None else data, loss=task) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            seen.losses.append(info.logged["loss"])
        seen.weights = {name: value.clone() for name, value in model.state_dict().items()}
    lines = Path(case.directory, "events.jsonl").read_text().splitlines()
    seen.events = [event for event in map(json.loads, lines) if event["event"] == "balance"]
    return seen


def run_beside_a_slow_rank(case: Case) -> Seen:
    """Rank 1 takes its time for each forward pass."""
    model = make_model()
    if os.environ["RANK"] == "1":
        model.register_forward_pre_hook(lambda module, inputs: time.sleep(SLOW_S))
    return run(case, model)


def run_with_shares(case: Case, weights: tuple[float, ...]) -> Seen:
    """As if ranks had been measured to be that fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drumline.engine.start.measure_balance", lambda *given: Balance(weights, None))
        return run(case, make_model())


def run_with_dropout(case: Case) -> Seen:
    """Whatever is measured, the shares are equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "NOTICEABLE", 1e9)
        return run(case, with_dropout())


def run_on_stream(directory: str, **parallel: Any) -> Seen:
    return run(case_of(directory, **parallel), make_model(), UnevenStream())


@pytest.mark.parametrize("shares", [(3.0, 1.0), (1.0, 40.0), (2.0, 1.0, 5.0)])
def test_unlike_shares_give_the_numbers_of_one_process(
    ranks: RankPool, tmp_path: Path, shares: tuple[float, ...]
) -> None:
    (alone,) = ranks.run(1, run, case_of(fresh(tmp_path)), make_model())
    several = ranks.run(len(shares), run_with_shares, case_of(fresh(tmp_path)), shares)
    for seen in several:
        assert largest_difference(seen.weights, alone.weights) <= 1e-10
        assert seen.losses == pytest.approx(alone.losses, abs=1e-10)


def test_a_slow_rank_gets_fewer_rows_and_the_numbers_stay(ranks: RankPool, tmp_path: Path) -> None:
    (alone,) = ranks.run(1, run, case_of(fresh(tmp_path)), make_model())
    fast, slow = ranks.run(2, run_beside_a_slow_rank, case_of(fresh(tmp_path)))
    assert largest_difference(fast.weights, alone.weights) <= 1e-10
    (event,) = fast.events
    assert event["seconds"][0] < SLOW_S < event["seconds"][1]
    assert event["rows"][0] > event["rows"][1] and sum(event["rows"]) == 16
    passes = balance.WARM_UP + balance.TIMED
    measured = Counter(fast.rows[: 4 * passes])
    assert set(measured.values()) == {passes} and measured == Counter(slow.rows[: 4 * passes])  # the same rows on both
    updates = 2 * -(-NUM_ROWS // 16)
    assert len(fast.losses) == len(slow.losses) == updates == len(alone.losses)
    assert len(set(fast.rows[4 * passes :])) > len(set(slow.rows[4 * passes :]))


def test_measuring_leaves_no_trace(ranks: RankPool, tmp_path: Path) -> None:
    """With dropout and BatchNorm the run is the same to the last bit where shares come out equal."""
    equal = ranks.run(2, run_with_dropout, case_of(fresh(tmp_path), "equal"))
    measured = ranks.run(2, run_with_dropout, case_of(fresh(tmp_path)))
    for seen, expected in zip(measured, equal, strict=True):
        assert (len(seen.events), len(expected.events)) == (1, 0)
        assert seen.losses == expected.losses
        assert largest_difference(seen.weights, expected.weights) == 0


def test_a_stream_stays_equal_and_says_so(ranks: RankPool, tmp_path: Path) -> None:
    for seen in ranks.run(2, run_on_stream, fresh(tmp_path)):
        assert ["stream" in event["message"] for event in seen.events] == [True]
        assert sorted(set(seen.rows)) in (list(range(5)), list(range(5, 8)))
