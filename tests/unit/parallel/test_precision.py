from __future__ import annotations

import pytest
import torch

from drumline.parallel.precision import GROWTH_INTERVAL, INITIAL_SCALE, LossScale, Precision

CPU = torch.device("cpu")
APPLIED, SKIPPED = torch.tensor(1.0), torch.tensor(0.0)


def test_a_skip_halves_the_scale() -> None:
    scale = LossScale(CPU)
    assert float(scale.scale) == INITIAL_SCALE
    scale.update(SKIPPED)
    scale.update(SKIPPED)
    assert float(scale.scale) == INITIAL_SCALE / 4


def test_the_scale_doubles_after_enough_finite_updates_in_a_row() -> None:
    scale = LossScale(CPU)
    scale.load({"scale": 8.0, "finite_in_a_row": GROWTH_INTERVAL - 2.0})
    scale.update(APPLIED)
    assert scale.state() == {"scale": 8.0, "finite_in_a_row": GROWTH_INTERVAL - 1.0}
    scale.update(APPLIED)
    assert scale.state() == {"scale": 16.0, "finite_in_a_row": 0.0}


def test_a_skip_starts_the_count_again() -> None:
    scale = LossScale(CPU)
    scale.load({"scale": 8.0, "finite_in_a_row": GROWTH_INTERVAL - 1.0})
    scale.update(SKIPPED)
    scale.update(APPLIED)
    assert scale.state() == {"scale": 4.0, "finite_in_a_row": 1.0}


def test_it_moves_as_torchs_scaler_does() -> None:
    """The same outcomes, with torch's scaler told to grow at the same interval."""
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], 0.0)
    scaler = torch.amp.GradScaler("cpu")
    scale = LossScale(CPU)
    for finite in (True, False, True, True, False, False):
        scaler.scale(p.sum()).backward()
        if not finite:
            assert p.grad is not None
            p.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scale.update(APPLIED if finite else SKIPPED)
        assert float(scale.scale) == scaler.get_scale()


def test_state_and_load_round_trip() -> None:
    first, second = LossScale(CPU), LossScale(CPU)
    first.update(SKIPPED)
    first.update(APPLIED)
    second.load(first.state())
    assert second.state() == first.state() == {"scale": INITIAL_SCALE / 2, "finite_in_a_row": 1.0}


@pytest.mark.parametrize(
    ("name", "dtype", "scaled"),
    [
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, False),
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, True),
    ],
)
def test_what_a_product_is_computed_in(name: str, dtype: torch.dtype, scaled: bool) -> None:
    precision = Precision(name, CPU)
    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert (precision.loss_scale is not None) == scaled
