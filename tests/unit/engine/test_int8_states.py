from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.config.train import OptimizerConfig, TrainConfig
from drumline.engine.int8_states import Int8AdamW, block_of
from drumline.engine.optimizer import make_optimizer
from drumline.errors import ConfigError
from drumline.parallel.strategy import Rates
from drumline.parallel.update import Update

SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, updates: int, first: int = 0) -> list[float]:
    losses = []
    for seed in range(first, first + updates):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(64, 64, generator=generator)
        loss = (net(x).squeeze(-1) - x[:, 0] * 2 - x[:, 1]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [True, False])
def test_trajectories_stay_close_with_a_quarter_of_the_bytes(fused: bool) -> None:
    reference, net = model(), model()
    full = torch.optim.AdamW(reference.parameters(), fused=fused, **SETTINGS)
    optimizer = Int8AdamW(net.parameters(), fused=fused, **SETTINGS)
    losses, plain = trained(net, optimizer, 60), trained(reference, full, 60)
    assert plain[-1] < 0.5 * plain[0]
    assert losses == pytest.approx(plain, rel=0.05)
    assert losses != plain
    first, bias = (optimizer.state[p] for p in list(net.parameters())[:2])
    assert first["exp_avg"].dtype == first["exp_avg_sq"].dtype == torch.uint8
    assert first["exp_avg"].shape == (32, 64)
    assert first["exp_avg_absmax"].shape == (32, 1)
    assert bias["exp_avg"].dtype == torch.float32


def test_rows_decide_about_blocks() -> None:
    sizes = {(4, 256): 256, (4, 384): 128, (1, 192): 64, (4, 2, 32): 64, (64, 16): None, (4096,): None, (0, 64): 64}
    assert {shape: block_of(torch.empty(shape)) for shape in sizes} == sizes


def test_a_part_of_the_rows_is_updated_as_in_the_whole() -> None:
    """What fsdp promises with it: to the bit."""
    torch.manual_seed(1)
    start, gradients = torch.randn(6, 128), [torch.randn(6, 128) * 10.0**-k for k in range(4)]
    found = []
    for rows in (slice(None), slice(2, 5)):
        p = nn.Parameter(start[rows].clone())
        optimizer = Int8AdamW([p], fused=True, **SETTINGS)
        for gradient in gradients:
            p.grad = gradient[rows].clone()
            optimizer.step()
        found.append(p.detach())
    torch.testing.assert_close(found[1], found[0][2:5], rtol=0, atol=0)


def test_what_is_too_small_for_8_bits_moves_too_little() -> None:
    """Beside a gradient of 1 one of 1e-9 is lost, which must not make its second moment a divisor of zero."""
    p = nn.Parameter(torch.zeros(1, 64))
    optimizer = Int8AdamW([p], fused=True, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0, eps=1e-12)
    for small in (1e-6, 1e-6, 0.0, 0.0, 1e-9, 0.0):
        gradient = torch.full((1, 64), small)
        gradient[0, 0] = 1.0
        p.grad = gradient
        optimizer.step()
    assert float(p.detach().abs().max()) < 0.1


def test_a_skipped_update_changes_no_bit() -> None:
    net = model()
    optimizer = Int8AdamW(net.parameters(), fused=True, **SETTINGS)
    update = Update(optimizer, Rates(lambda step: 1.0, 4, None, "update", skippable=True), None)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    update.apply(None)
    before = copy.deepcopy((net.state_dict(), update.state()))
    for p in net.parameters():
        p.grad = torch.full_like(p, float("nan"))
    assert float(update.apply(None).applied) == 0
    torch.testing.assert_close((net.state_dict(), update.state()), before, rtol=0, atol=0)


def test_a_resumed_run_is_the_same_to_the_bit() -> None:
    net, other = model(), model()
    optimizer = Int8AdamW(net.parameters(), fused=True, **SETTINGS)
    trained(net, optimizer, 3)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    through = trained(net, optimizer, 3, first=3)
    assert state["state"][0]["exp_avg"].dtype == torch.uint8
    resumed = Int8AdamW(other.parameters(), fused=True, **SETTINGS)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert trained(other, resumed, 3, first=3) == through


def test_it_takes_the_moments_of_plain_adamw() -> None:
    net = model()
    plain = torch.optim.AdamW(net.parameters(), fused=True, **SETTINGS)
    trained(net, plain, 3)
    optimizer = Int8AdamW(copy.deepcopy(net).parameters(), fused=True, **SETTINGS)
    optimizer.load_state_dict(plain.state_dict())
    (p, *_), (q, *_) = optimizer.param_groups[0]["params"], plain.param_groups[0]["params"]
    mean: Tensor = plain.state[q]["exp_avg"]
    widest = mean.abs().amax(1, keepdim=True)
    assert bool(((optimizer._widened(p, "exp_avg") - mean).abs() <= 0.01 * widest).all())
    assert optimizer.state[p]["step"] == 3


def test_the_config_makes_it() -> None:
    config = TrainConfig(optimizer=OptimizerConfig(state_precision="int8", betas=(0.8, 0.9), eps=1e-6))
    optimizer = make_optimizer(model(), config)
    assert isinstance(optimizer, Int8AdamW)
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["eps"] == 1e-6


def test_pages_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="there is no GPU"):
        Int8AdamW(model().parameters(), fused=True, paged=True, **SETTINGS)
