from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from drumline.config.train import AveragingConfig
from drumline.errors import ConfigError
from drumline.parallel.averaging import Average


class Small(nn.Module):
    """A parameter, a frozen one, running statistics, an integer buffer and one that no checkpoint holds."""

    count: Tensor
    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))
        self.frozen = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.full((2,), 5.0), persistent=False)

    @torch.no_grad()
    def become(self, value: float) -> None:
        """As after an update."""
        self.weight.fill_(value)
        self.mean = torch.full((3,), value * 2)  # another tensor in its place
        self.count += 1


def averaged(average: Average, model: Small) -> tuple[float, float, int]:
    with average.swapped():
        return float(model.weight[0, 0].detach()), float(model.mean[0]), int(model.count)


def run(config: AveragingConfig, values: list[float], total: int | None, on_device: bool) -> tuple[Average, Small]:
    model = Small()
    average = Average(model, config, total)
    for value in values:
        model.become(value)
        average.update(torch.ones(()) if on_device else None)
    return average, model


either = pytest.mark.parametrize("on_device", [False, True])


@either
def test_ema_by_hand(on_device: bool) -> None:
    average, model = run(AveragingConfig(decay=0.75), [4.0, 8.0, 0.0], None, on_device)
    # 4; 4 + (8 - 4)/4 = 5; 5 - 5/4 = 3.75
    assert averaged(average, model) == (3.75, 7.5, 3)


@either
def test_swa_is_the_mean_of_what_was_taken_in(on_device: bool) -> None:
    average, model = run(AveragingConfig(kind="swa"), [1.0, 2.0, 6.0], 3, on_device)
    assert averaged(average, model) == pytest.approx((3.0, 6.0, 3))


@either
def test_ema_is_torchs_own(on_device: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    average = Average(model, AveragingConfig(decay=0.9), None)
    for _ in range(5):
        for p in model.parameters():
            p.data.add_(torch.randn_like(p))
        model(torch.randn(6, 3))
        reference.update_parameters(model)
        average.update(torch.ones(()) if on_device else None)
    expected = {name: value for name, value in reference.module.state_dict().items() if value.is_floating_point()}
    with average.swapped():
        found = {name: model.state_dict()[name].clone() for name in expected}
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@either
@pytest.mark.parametrize(
    ("start", "every", "total", "expected"),
    [
        (0.0, 1, 6, [1, 2, 3, 4, 5, 6]),
        (0.5, 1, 6, [4, 5, 6]),
        (0.4, 1, 6, [3, 4, 5, 6]),
        (0.0, 2, 6, [2, 4, 6]),
        (0.5, 2, 6, [5]),
        (0.0, 4, None, [4]),
    ],
)
def test_which_updates_are_taken_in(
    start: float, every: int, total: int | None, expected: list[int], on_device: bool
) -> None:
    config = AveragingConfig(kind="swa", start=start, every=every)
    average, model = run(config, [float(k) for k in range(1, 7)], total, on_device)
    assert averaged(average, model)[0] == pytest.approx(sum(expected) / len(expected))
    assert average.state()["taken"] == len(expected)


def test_skipped_updates_do_not_count() -> None:
    config = AveragingConfig(decay=0.5, every=2)
    reference, straight = run(config, [1.0, 2.0, 3.0, 4.0], None, True)
    model = Small()
    average = Average(model, config, None)
    for value, applied in ((1.0, 1.0), (1.0, 0.0), (2.0, 1.0), (2.0, 0.0), (2.0, 0.0), (3.0, 1.0), (4.0, 1.0)):
        if applied:
            model.become(value)
        average.update(torch.tensor(applied))
    assert averaged(average, model) == averaged(reference, straight) == (3.0, 6.0, 4)


@either
def test_before_it_begins_the_weights_stand_for_it(on_device: bool) -> None:
    average, model = run(AveragingConfig(start=0.5), [3.0], 10, on_device)
    assert averaged(average, model) == (3.0, 6.0, 1)
    assert average.state() == {"completed": 1, "taken": 0, "averages": {}}


@either
def test_weights_come_back_to_the_bit_and_the_average_stays(on_device: bool) -> None:
    average, model = run(AveragingConfig(decay=0.3), [0.1, 0.7, 1 / 3], None, on_device)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = averaged(average, model)
    with pytest.raises(KeyError), average.swapped():
        assert float(model.weight[0, 0].detach()) == first[0] != float(before["weight"][0, 0])
        with average.swapped():  # an evaluation inside one
            assert float(model.weight[0, 0].detach()) == first[0]
        assert float(model.weight[0, 0].detach()) == first[0]
        raise KeyError
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert averaged(average, model) == first
    assert model.weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_averaged_in_float32(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2).to(dtype)
    average = Average(model, AveragingConfig(decay=0.999), None)
    for value in (1.0, *[2.0] * 100):
        nn.init.constant_(model.weight, value)
        average.update(None)
    state = average.state()["averages"]["weight"]
    torch.testing.assert_close(state, torch.full((2, 2), 2 - 0.999**100), rtol=1e-5, atol=0)
    with average.swapped():
        assert model.weight.dtype is dtype
        assert torch.equal(model.weight, state.to(dtype))
    assert torch.equal(average.state()["averages"]["weight"], state)


@pytest.mark.parametrize("saved_on_device", [False, True])
@pytest.mark.parametrize("goes_on_on_device", [False, True])
@pytest.mark.parametrize("at", [1, 3])
def test_state_and_load_go_on(saved_on_device: bool, goes_on_on_device: bool, at: int) -> None:
    config = AveragingConfig(decay=0.6, start=0.25, every=2)
    values = [0.5, 1.5, 2.5, 0.25, 4.0, 5.0, 6.0, 8.0]
    reference, straight = run(config, values, len(values), False)
    average, model = run(config, values[:at], len(values), saved_on_device)
    saved = copy.deepcopy(average.state())
    resumed = Average(model, config, len(values))
    resumed.load(saved)
    for value in values[at:]:
        model.become(value)
        resumed.update(torch.ones(()) if goes_on_on_device else None)
    torch.testing.assert_close(averaged(resumed, model), averaged(reference, straight))
    assert resumed.state()["completed"] == len(values)


def test_the_state_has_only_what_is_averaged() -> None:
    average, _ = run(AveragingConfig(), [1.0], None, False)
    assert set(average.state()["averages"]) == {"weight", "mean", "count"}


def test_the_state_of_other_weights_is_refused() -> None:
    saved: dict[str, Any] = run(AveragingConfig(), [1.0], None, False)[0].state()
    with pytest.raises(ValueError, match="other weights: bias, count, mean"):
        Average(nn.Linear(3, 2), AveragingConfig(), None).load(saved)


def test_a_share_of_a_run_of_unknown_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"start is 0\.5.*\n.*max_steps"):
        Average(Small(), AveragingConfig(start=0.5), None)


def test_an_average_of_nothing_is_refused() -> None:
    Average(Small(), AveragingConfig(start=0.5, every=5), 10)
    with pytest.raises(ConfigError, match=r"every 6 updates after the first 5.*\n.*every to 5 or less"):
        Average(Small(), AveragingConfig(start=0.5, every=6), 10)
