from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drumline.parallel.compute import Compute
from drumline.parallel.noise import SIGNAL, TRACE, Noise, noise_scales, squared_norm
from drumline.parallel.single import Single
from drumline.parallel.strategy import MAIN, Learner, Loss, MicroBatch, Rates, Scale
from drumline.tasks.function import FunctionTask

CPU = torch.device("cpu")
DIM, DEVIATION = 4, 1.5
MEAN = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
TRUE_TRACE, TRUE_SIGNAL = DIM * DEVIATION**2, float(MEAN.square().sum())


def drawn(count: int, seed: int) -> Tensor:
    """Rows whose gradient is the row itself: mean MEAN, each coordinate's variance DEVIATION ** 2."""
    generator = torch.Generator().manual_seed(seed)
    return MEAN + DEVIATION * torch.randn(count, DIM, dtype=torch.float64, generator=generator)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.weight


def single(task: object, precision: str = "fp32") -> Single:
    strategy = Single(CPU, Compute(precision), gradient_noise=True)
    rates = Rates(None, None, None, "update", False)
    learner = Learner(task, lambda model: torch.optim.SGD(model.parameters(), 0.0), rates)  # type: ignore[arg-type]
    strategy.setup(Linear(), {MAIN: learner})
    return strategy


TASK = FunctionTask(lambda model, rows: model(rows).mean())


def sums_of(strategy: Single, parts: list[Tensor], units: int = 1) -> dict[str, float]:
    count = sum(len(part) for part in parts)
    micro_batches = [MicroBatch(part, units * len(part), len(part)) for part in parts]
    strategy.window(MAIN, micro_batches, Scale(1 / (units * count), 1 / count))
    return {name: float(value) for name, (value, _) in strategy.step(MAIN, 1e-3).sums.items()}


def test_the_estimates_are_those_of_appendix_a() -> None:
    rows = drawn(10, 0)
    found = sums_of(single(TASK), [rows[:2], rows[2:]])
    small, large = (float(part.mean(0).square().sum()) for part in (rows[:2], rows))
    assert found[SIGNAL] == pytest.approx((10 * large - 2 * small) / (10 - 2), rel=1e-12)
    assert found[TRACE] == pytest.approx((small - large) / (1 / 2 - 1 / 10), rel=1e-12)


def test_over_many_windows_they_come_to_the_true_values() -> None:
    windows, size, part = 200_000, 6, 2
    rows = drawn(windows * size, 2).view(windows, size, DIM)
    noise = Noise()
    small = rows[:, :part].mean(1) / (size / part)  # as a backward pass leaves it: over the whole window's count
    noise.take(small.square().sum(-1), MicroBatch(None, part, part), Scale(1 / size, 1 / size), None)
    sums = noise.sums(rows.mean(1).square().sum(-1).sqrt())
    assert isinstance(sums[SIGNAL][0], Tensor) and len(sums[SIGNAL][0]) == windows
    signal, trace = (sums[name][0] for name in (SIGNAL, TRACE))
    for found, true in ((signal, TRUE_SIGNAL), (trace, TRUE_TRACE)):
        error = float(found.std() / windows**0.5)
        assert error < 0.01 * true
        assert float(found.mean()) == pytest.approx(true, abs=4 * error)


class Tokens:
    """A sum over two counted units a row, which a loss scale must not be seen in."""

    def count(self, batch: Tensor) -> int:
        return 2 * len(batch)

    def check(self, batch: Tensor) -> None:
        pass

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        outputs: Tensor = model(batch)
        return outputs

    def loss(self, outputs: Tensor, batch: Tensor) -> Loss:
        return Loss(2 * outputs.sum())


def test_neither_units_nor_the_loss_scale_change_them() -> None:
    rows = drawn(10, 1)
    parts = [rows[:2], rows[2:]]
    expected = sums_of(single(TASK), parts)
    assert sums_of(single(Tokens()), parts, units=2) == pytest.approx(expected, rel=1e-12)
    # Under fp16 the loss is rounded, so that only the loss scale of 65536 must be gone.
    assert sums_of(single(Tokens(), "fp16"), parts, units=2) == pytest.approx(expected, rel=1e-2)


def test_one_micro_batch_says_nothing() -> None:
    assert sums_of(single(TASK), [drawn(4, 0)]) == {}
    noise = Noise()
    noise.take(torch.tensor(1.0), MicroBatch(None, 0, 2), Scale(1.0, 0.25), None)
    noise.take(torch.tensor(1.0), MicroBatch(None, 2, 2, weight=0), Scale(1.0, 0.25), None)
    assert noise.sums(torch.tensor(1.0)) == {}


def test_a_window_says_nothing_of_the_one_before() -> None:
    strategy = single(TASK)
    assert sums_of(strategy, [drawn(2, 0), drawn(4, 1)])
    assert sums_of(strategy, [drawn(4, 0)]) == {}


def test_the_squared_norm_is_of_all_that_there_is() -> None:
    assert float(squared_norm([torch.tensor([3.0]), None, torch.tensor([[4.0]])])) == 25.0


def test_the_scale_is_the_quotient_of_sums_over_all_ranks() -> None:
    parts = [
        {"total": [1.0, 1.0], SIGNAL: [4.0, 2.0], TRACE: [12.0, 2.0]},
        {SIGNAL: [1.0, 1.0], TRACE: [3.0, 1.0]},
        {"total": [1.0, 1.0]},
    ]
    assert noise_scales(parts) == {"gradient_noise_scale": 3.0}
    named = [{f"{SIGNAL}/critic": [2.0, 1.0], f"{TRACE}/critic": [5.0, 1.0]}]
    assert noise_scales(named) == {"critic/gradient_noise_scale": 2.5}
    assert noise_scales([{SIGNAL: [-0.1, 1.0], TRACE: [3.0, 1.0]}]) == {}
    assert noise_scales([{}, {}]) == {}
