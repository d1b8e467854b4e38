from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from drumline.config.train import OptimizerConfig, TrainConfig
from drumline.engine import half_states
from drumline.engine.half_states import HalfStateAdamW, parts_of
from drumline.engine.optimizer import make_optimizer
from drumline.parallel.strategy import Rates
from drumline.parallel.update import Update

Half = Literal["bf16", "fp16"]
HALVES: list[Half] = ["bf16", "fp16"]
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
halves = pytest.mark.parametrize("half", HALVES)


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def half_optimizer(net: nn.Module, half: Half, *, fused: bool = True) -> HalfStateAdamW:
    return HalfStateAdamW(net.parameters(), half=half, fused=fused, **SETTINGS)


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, updates: int, first: int = 0) -> list[float]:
    losses = []
    for seed in range(first, first + updates):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(64, 8, generator=generator)
        loss = (net(x).squeeze(-1) - x[:, 0] * 2 - x[:, 1]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def bytes_of_moments(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    )


@halves
@pytest.mark.parametrize("fused", [True, False])
def test_trajectories_stay_close_with_half_the_bytes(half: Half, fused: bool) -> None:
    reference, net = model(), model()
    full = torch.optim.AdamW(reference.parameters(), fused=fused, **SETTINGS)
    optimizer = half_optimizer(net, half, fused=fused)
    losses, plain = trained(net, optimizer, 100), trained(reference, full, 100)
    assert plain[-1] < 0.5 * plain[0]
    assert losses == pytest.approx(plain, rel=0.02)
    assert losses != plain
    assert 2 * bytes_of_moments(optimizer) == bytes_of_moments(full)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 10.0])
def test_float16_holds_small_and_large_gradients(size: float) -> None:
    """The squares of 1e-6 are far below what float16 can hold."""
    values = torch.linspace(-1, 1, 8) * size
    found = []
    for make in (torch.optim.AdamW, lambda p, **settings: HalfStateAdamW(p, half="fp16", fused=True, **settings)):
        p = nn.Parameter(torch.ones(8))
        optimizer = make([p], **{**SETTINGS, "eps": 1e-12})
        for factor in (1.0, 0.5, 2.0, -1.0):
            p.grad = values * factor
            optimizer.step()
        found.append(p.detach())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-4)


def test_gradients_that_float16_cannot_hold_count_as_the_largest() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = HalfStateAdamW([p], half="fp16", fused=True, **SETTINGS)
    for _ in range(3):
        before = p.detach().clone()
        p.grad = torch.tensor([1e4, -1e30])
        optimizer.step()
        assert bool(torch.isfinite(p).all())
        assert float((p.detach() - before).abs().max()) < 2 * SETTINGS["lr"]


@halves
def test_a_skipped_update_changes_no_bit(half: Half) -> None:
    """As Update does it: found_inf on the device, and gradients divided by grad_scale in the kernel."""
    net = model()
    optimizer = half_optimizer(net, half)
    update = Update(optimizer, Rates(lambda step: 1.0, 10, None, "update", True), None)
    assert optimizer._step_supports_amp_scaling

    def apply(fill: float) -> None:
        for p in net.parameters():
            p.grad = torch.full_like(p, fill)
        assert float(update.apply(0.1).applied) == (fill == fill)

    apply(1.0)
    before = copy.deepcopy((net.state_dict(), dict(optimizer.state)))
    apply(float("nan"))
    for one, other in zip(net.parameters(), before[0].values(), strict=True):
        assert torch.equal(one, other)
    for state, kept in zip(optimizer.state.values(), before[1].values(), strict=True):
        assert all(torch.equal(state[name], kept[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
    apply(1.0)
    assert update.state()["completed"] == 2
    # A gradient of all ones, clipped to a norm of 0.1 by the kernel.
    root = sum(p.numel() for p in net.parameters()) ** 0.5
    mean = optimizer.state_dict()["state"][0]["exp_avg"].float()
    torch.testing.assert_close(mean, torch.full_like(mean, 0.19 * 0.1 / root), rtol=0.01, atol=0)


@halves
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(half: Half) -> None:
    net = model()
    optimizer = half_optimizer(net, half)
    trained(net, optimizer, 5)
    weights, state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    going_on = trained(net, optimizer, 5, first=5)
    net.load_state_dict(weights)
    resumed = half_optimizer(net, half)
    resumed.load_state_dict(state)
    assert bytes_of_moments(resumed) == bytes_of_moments(optimizer)
    assert trained(net, resumed, 5, first=5) == going_on


@halves
def test_states_are_taken_from_plain_adamw_and_by_it(half: Half) -> None:
    net = model()
    full = torch.optim.AdamW(net.parameters(), fused=True, **SETTINGS)
    trained(net, full, 5)
    optimizer = half_optimizer(net, half)
    optimizer.load_state_dict(full.state_dict())
    again = torch.optim.AdamW(net.parameters(), fused=True, **SETTINGS)
    again.load_state_dict(optimizer.state_dict())
    for p in net.parameters():
        assert again.state[p]["exp_avg"].dtype == torch.float32
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(again.state[p][name], full.state[p][name], rtol=2**-8, atol=1e-9)


def test_parts_hold_no_more_than_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_states, "MOST_VALUES", 10)
    sizes = [4, 6, 1, 30, 2, 8]
    parts = list(parts_of([torch.zeros(size) for size in sizes]))
    assert [[p.numel() for p in part] for part in parts] == [[4, 6], [1], [30], [2, 8]]
    assert list(parts_of([])) == []
    whole, net = model(), model()
    losses = trained(net, half_optimizer(net, "bf16"), 3)
    monkeypatch.undo()
    assert trained(whole, half_optimizer(whole, "bf16"), 3) == losses


@halves
def test_the_config_makes_it(half: Half, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "drumline")
    config = TrainConfig(optimizer=OptimizerConfig(state_precision=half, betas=(0.8, 0.9), eps=1e-6))
    optimizer = make_optimizer(model(), config)
    assert isinstance(optimizer, HalfStateAdamW)
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.9), 1e-6)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert f"adamw (fused), moments in {half}, 2 groups" in caplog.text


def test_parameters_of_half_precision_are_updated_in_it() -> None:
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = HalfStateAdamW([p], half="bf16", fused=True, **SETTINGS)
    p.grad = torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.bfloat16)
    optimizer.step()
    reference = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    plain = torch.optim.AdamW([reference], fused=True, **SETTINGS)
    reference.grad = p.grad.clone()
    plain.step()
    moments: list[Tensor] = [optimizer.state[p]["exp_avg_sq"], plain.state[reference]["exp_avg_sq"]]
    assert torch.equal(p, reference) and torch.equal(*moments)
