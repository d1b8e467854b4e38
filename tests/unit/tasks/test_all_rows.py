from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score, roc_auc_score
from torch import Tensor

from drumline.tasks.all_rows import AllRows, AreaUnderCurve, Retrieval, RSquared


def value(metric: AllRows, outputs: Tensor, targets: Tensor) -> float:
    """In two batches of unequal size."""
    cut = len(outputs) // 3
    for part in (slice(0, cut), slice(cut, None)):
        metric.update(outputs[part], targets[part])
    return float(metric.compute())


@pytest.mark.parametrize("steps", [3, 1000], ids=["many equal scores", "few"])
def test_area_is_scikit_learns(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    scores = torch.randint(steps, (200, 4), generator=generator).float()
    truth = torch.rand(200, 4, generator=generator) < torch.tensor([0.5, 0.1, 0.9, 0.02])
    expected = roc_auc_score(truth.numpy(), scores.numpy(), average="macro")
    assert value(AreaUnderCurve(), scores, truth) == pytest.approx(expected, abs=1e-12)


def test_area_leaves_out_a_column_with_one_kind_of_truth() -> None:
    scores = torch.tensor([[0.1, 5.0], [0.9, 1.0], [0.4, 2.0]])
    truth = torch.tensor([[False, True], [True, True], [True, True]])
    assert value(AreaUnderCurve(), scores, truth) == 1.0
    assert np.isnan(value(AreaUnderCurve(), scores[:, 1:], truth[:, 1:]))


def test_area_tells_large_scores_apart() -> None:
    scores = torch.tensor([[40.0], [50.0], [60.0], [70.0]])
    truth = torch.tensor([[True], [False], [True], [True]])
    assert value(AreaUnderCurve(), scores, truth) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-4, 0.0), (1.0, 1e5)])
def test_r_squared_is_scikit_learns(scale: float, offset: float) -> None:
    generator = torch.Generator().manual_seed(3)
    targets = torch.randn(30, 2, generator=generator) * scale + offset
    outputs = targets + 0.3 * scale * torch.randn(30, 2, generator=generator)
    expected = r2_score(targets.double().numpy(), outputs.double().numpy())
    assert 0.8 < expected < 1
    assert value(RSquared(), outputs, targets) == pytest.approx(expected, abs=1e-9)


def test_r_squared_of_targets_that_do_not_vary_is_not_defined() -> None:
    outputs, targets = torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([[3.0, 1.0], [3.0, 2.0]])
    assert value(RSquared(), outputs, targets) == 1.0
    assert np.isnan(value(RSquared(), outputs[:, :1], targets[:, :1]))
    single = RSquared()
    single.update(outputs[:1], targets[:1])
    assert np.isnan(float(single.compute()))


def test_partners_are_looked_for_among_a_thousand_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(500, 16, generator=generator), dim=-1)
    twice = torch.cat([rows, rows])
    # Each row has an equal one 500 rows further; in a block of 1,000 the first of both is taken.
    assert value(Retrieval(), twice, twice) == 0.5
    # The third copy has a block of its own.
    thrice = torch.cat([twice, rows])
    assert value(Retrieval(), thrice, thrice) == pytest.approx(2 / 3)
