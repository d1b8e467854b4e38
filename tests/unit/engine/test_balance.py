from __future__ import annotations

from pathlib import Path

import pytest

from drumline.data.order import weighted
from drumline.engine.balance import NOTICEABLE, shared_out
from tests.unit.engine.training import events, trainer_of


def test_shares_follow_speed() -> None:
    found = shared_out([0.010, 0.030], 64)
    assert found.weights is not None and found.weights[0] / found.weights[1] == pytest.approx(3)
    assert found.facts is not None
    assert found.facts["rows"] == [48, 16] == [len(part) for part in weighted(64, found.weights)]
    assert found.facts["message"] == "10, 30 ms a pass by rank: 48, 16 samples of each update"


def test_equal_ranks_stay_equal_for_all_their_noise() -> None:
    found = shared_out([0.0100, 0.0104, 0.0102], 10)
    assert NOTICEABLE > 0.0104 / 0.0100
    assert found.weights is None and found.facts is not None and found.facts["rows"] == [4, 3, 3]


def test_one_process_measures_nothing(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", parallel={"kind": "ddp", "balance": "measured"}) as trainer:
        trainer.fit()
    assert "balance" not in events(tmp_path / "run")
