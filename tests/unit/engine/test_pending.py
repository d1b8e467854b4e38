from __future__ import annotations

import torch

from drumline.engine.pending import Known, Numbers, Pending
from drumline.parallel.strategy import Outcome


def outcome(norm: float, applied: float, lr: torch.Tensor | float) -> Outcome:
    return Outcome(torch.tensor(norm), torch.tensor(applied), lr)


def test_outcomes_come_in_order_all_but_the_newest() -> None:
    pending = Pending(torch.device("cpu"))
    pending.push(1, [outcome(2.0, 1.0, 0.5)])
    pending.push(2, [outcome(3.0, 0.0, torch.tensor(0.25)), outcome(4.0, 1.0, 0.125)])
    assert len(pending) == 2
    assert pending.take(keep=1) == [Known(1, [Numbers(2.0, True, 0.5)])]
    assert len(pending) == 1
    assert pending.take(keep=1) == []
    assert pending.take(keep=0) == [Known(2, [Numbers(3.0, False, 0.25), Numbers(4.0, True, 0.125)])]
    assert pending.take(keep=0) == []


def test_a_rate_of_the_host_keeps_its_bits_beside_a_norm_of_few() -> None:
    pending = Pending(torch.device("cpu"))
    pending.push(1, [Outcome(torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0), 0.1)])
    pending.push(2, [Outcome(torch.tensor(1.0, dtype=torch.float32), torch.tensor(1.0), 0.1)])
    assert [known.learners[0].lr for known in pending.take(keep=0)] == [0.1, 0.1]
