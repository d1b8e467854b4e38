from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from drumline.parallel.precision import LossScale
from drumline.parallel.strategy import Interval, Outcome, Rates
from drumline.parallel.update import Update
from tests.unit.parallel.updates import MakeOptimizer, assert_same, constant, new_parameters, set_gradients, snapshot

CPU = torch.device("cpu")

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "sgd fused with dampening": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
}
optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def halving(step: int) -> float:
    return 0.5**step


@optimizers
@pytest.mark.parametrize("max_norm", [None, 0.3, 1e9])
def test_an_update_is_torchs_own_clipping_and_step(make: MakeOptimizer, max_norm: float | None) -> None:
    ours, theirs = new_parameters(), new_parameters()
    update, optimizer = Update(make(ours), constant(), None), make(theirs)
    for seed in range(4):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        outcome = update.apply(max_norm)
        norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm if max_norm is not None else float("inf"))
        optimizer.step()
        torch.testing.assert_close(outcome.norm, norm, rtol=1e-12, atol=0)
        assert float(outcome.applied) == 1.0
        assert all(p.grad is None for p in ours)
        for mine, reference in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-14)


def test_clipping_by_hand() -> None:
    p = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    update = Update(torch.optim.SGD([p], 1.0), constant(), None)
    p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    outcome = update.apply(1.0)
    assert float(outcome.norm) == 5.0
    torch.testing.assert_close(p.detach(), torch.tensor([0.4, 0.2], dtype=torch.float64), rtol=0, atol=1e-6)


@optimizers
def test_unscaling_comes_before_the_norm_and_the_clipping(make: MakeOptimizer) -> None:
    scale = LossScale(CPU)
    plain, scaled = new_parameters(), new_parameters()
    reference, update = Update(make(plain), constant(), None), Update(make(scaled), constant(True), scale)
    for seed in range(3):
        set_gradients(plain, seed)
        set_gradients(scaled, seed, times=float(scale.scale))
        expected, found = reference.apply(0.5), update.apply(0.5)
        torch.testing.assert_close(found.norm, expected.norm, rtol=1e-12, atol=0)
        for p, q in zip(plain, scaled, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


@optimizers
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("skippable", [True, False])
def test_a_gradient_that_is_not_finite_changes_nothing(
    make: MakeOptimizer, value: float, before: int, skippable: bool
) -> None:
    parameters = new_parameters()
    update = Update(make(parameters), constant(skippable), None)
    for seed in range(before):
        set_gradients(parameters, seed)
        update.apply(1.0)
    weights, state = snapshot(update, parameters)
    set_gradients(parameters, 9)
    assert parameters[1].grad is not None
    parameters[1].grad[2] = value
    outcome = update.apply(1.0)
    assert float(outcome.applied) == 0.0
    assert not torch.isfinite(outcome.norm)
    assert_same([p.detach() for p in parameters], weights)
    if before:
        assert_same(update.optimizer.state_dict()["state"], state)
    assert all(p.grad is None for p in parameters)


@optimizers
@pytest.mark.parametrize("skipped", [0, 2])
def test_going_on_after_a_skip_is_as_if_it_had_not_been(make: MakeOptimizer, skipped: int) -> None:
    straight, interrupted = new_parameters(), new_parameters()
    rates = Rates(halving, 5, None, "update", True)
    reference, update = Update(make(straight), rates, None), Update(make(interrupted), rates, None)
    for seed in range(4):
        if seed == skipped:
            set_gradients(interrupted, 77, times=float("inf"))
            assert float(update.apply(1.0).applied) == 0.0
        set_gradients(straight, seed)
        set_gradients(interrupted, seed)
        reference.apply(1.0)
        update.apply(1.0)
    assert_same([p.detach() for p in interrupted], [p.detach() for p in straight])
    assert_same(update.optimizer.state_dict()["state"], reference.optimizer.state_dict()["state"])


@optimizers
def test_rates_count_completed_updates(make: MakeOptimizer) -> None:
    parameters = new_parameters()
    update = Update(make(parameters), Rates(halving, 4, None, "update", True), None)
    rates = []
    for times in (1.0, float("nan"), 1.0, float("inf"), 1.0, 1.0, 1.0):
        set_gradients(parameters, 0, times)
        outcome = update.apply(None)
        rates.append((float(outcome.lr), float(outcome.applied)))
    applied = [lr for lr, was_applied in rates if was_applied]
    assert applied == [0.1, 0.05, 0.025, 0.0125, applied[-1]]
    assert rates[1][0] == rates[2][0] == 0.05
    assert rates[3][0] == rates[4][0] == 0.025


def test_rates_past_the_end_stay_at_the_last() -> None:
    """A run of known length never gets there, but a resumed one with a shorter plan might."""
    parameters = new_parameters()
    update = Update(torch.optim.SGD(parameters, 1.0, fused=True), Rates(halving, 2, None, "update", True), None)
    rates = []
    for _ in range(3):
        set_gradients(parameters, 0)
        rates.append(float(update.apply(None).lr))
    assert rates == [1.0, 0.5, 0.5]


@pytest.mark.parametrize("skippable", [True, False])
def test_each_groups_own_rate_is_scaled(skippable: bool) -> None:
    first, second = new_parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": [second], "lr": 0.01}], fused=True)
    update = Update(optimizer, Rates(halving, 4, None, "update", skippable), None)
    for expected in (1.0, 0.5):
        before = [first.detach().clone(), second.detach().clone()]
        for p in (first, second):
            p.grad = torch.ones_like(p)
        assert float(update.apply(None).lr) == expected
        torch.testing.assert_close(before[0] - first.detach(), torch.full_like(first, expected))
        torch.testing.assert_close(before[1] - second.detach(), torch.full_like(second, expected / 100))


@optimizers
@pytest.mark.parametrize("skippable", [True, False])
def test_a_ready_scheduler_steps_with_applied_updates_only(make: MakeOptimizer, skippable: bool) -> None:
    parameters = new_parameters()
    optimizer = make(parameters)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    update = Update(optimizer, Rates(None, 4, lambda _: scheduler, "update", skippable), None)
    rates = []
    for times in (float("nan"), 1.0, 1.0, float("nan"), 1.0) if skippable else (1.0, 1.0, 1.0):
        set_gradients(parameters, 0, times)
        rates.append(float(update.apply(None).lr))
    expected = [0.1, 0.1, 0.05, 0.025, 0.025] if skippable else [0.1, 0.05, 0.025]
    torch.testing.assert_close(rates, expected, rtol=1e-12, atol=0)
    assert scheduler.last_epoch == 3


def test_a_skip_that_ends_the_run_does_not_step_the_scheduler() -> None:
    parameters = new_parameters()
    optimizer = torch.optim.SGD(parameters, 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    set_gradients(parameters, 0, float("nan"))
    Update(optimizer, Rates(None, 4, lambda _: scheduler, "update", False), None).apply(None)
    assert scheduler.last_epoch == 0


def test_without_scheduler_a_ready_optimizer_keeps_its_rate() -> None:
    parameters = new_parameters()
    update = Update(torch.optim.SGD(parameters, 0.3), Rates(None, None, None, "update", False), None)
    for _ in range(2):
        set_gradients(parameters, 0)
        assert update.apply(None).lr == 0.3


@optimizers
@pytest.mark.parametrize("skippable", [True, False])
@pytest.mark.parametrize("scheduled", ["factor", "scheduler", "scale"])
def test_state_and_load_go_on_with_the_same_bits(make: MakeOptimizer, skippable: bool, scheduled: str) -> None:
    def build() -> tuple[list[nn.Parameter], Update]:
        parameters = new_parameters()
        optimizer = make(parameters)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7) if scheduled == "scheduler" else None
        make_scheduler = None if scheduler is None else lambda _: scheduler
        rates = Rates(None if scheduler else halving, 9, make_scheduler, "update", skippable)
        return parameters, Update(optimizer, rates, LossScale(CPU) if scheduled == "scale" else None)

    def run(update: Update, parameters: list[nn.Parameter], seeds: Sequence[int]) -> list[Outcome]:
        outcomes = []
        for seed in seeds:
            set_gradients(parameters, seed, float("inf") if seed == 2 and skippable else 1.0)
            outcomes.append(update.apply(1.0))
        return outcomes

    straight, reference = build()
    expected = run(reference, straight, range(7))
    first, saving = build()
    run(saving, first, range(4))
    saved = copy.deepcopy(saving.state())
    second, loading = build()
    for p, value in zip(second, first, strict=True):
        p.data.copy_(value)
    loading.load(copy.deepcopy(saved))
    assert_same(loading.state(), saved)  # a run that ends at once is saved as it was
    found = run(loading, second, range(4, 7))
    assert_same([p.detach() for p in second], [p.detach() for p in straight])
    for outcome, same in zip(found, expected[4:], strict=True):
        assert_same((outcome.norm, float(outcome.lr)), (same.norm, float(same.lr)))
    assert_same(loading.state(), reference.state())


def test_the_state_of_a_device_table_is_read_by_a_host_rate_and_back() -> None:
    """A run goes on as fp32 that was saved as fp16, or the other way."""
    for skippable in (True, False):
        parameters, other = new_parameters(), new_parameters()
        saving = Update(
            torch.optim.AdamW(parameters, 0.1, fused=True), Rates(halving, 9, None, "update", skippable), None
        )
        loading = Update(
            torch.optim.AdamW(other, 0.1, fused=True), Rates(halving, 9, None, "update", not skippable), None
        )
        for seed in range(2):
            set_gradients(parameters, seed)
            saving.apply(None)
        loading.load(copy.deepcopy(saving.state()))
        set_gradients(other, 2)
        assert float(loading.apply(None).lr) == 0.1 * 0.25


def test_a_parameter_without_gradient_is_left_alone() -> None:
    first, second = new_parameters()
    for fused in (True, False):
        update = Update(torch.optim.SGD([first, second], 0.1, momentum=0.9, fused=fused), constant(True), None)
        before = second.detach().clone()
        first.grad = torch.ones_like(first)
        assert float(update.apply(1.0).applied) == 1.0
        assert_same(second.detach(), before)
        for p in (first, second):
            p.grad = torch.ones_like(p)
        update.apply(None)
        torch.testing.assert_close(before - second.detach(), torch.full_like(second, 0.1))


def test_clear_drops_the_gradients() -> None:
    parameters = new_parameters()
    update = Update(torch.optim.SGD(parameters, 0.1), constant(), None)
    set_gradients(parameters, 0)
    update.clear()
    assert all(p.grad is None for p in parameters)


@pytest.mark.parametrize("interval", ["epoch", "evaluation"])
@pytest.mark.parametrize("skippable", [True, False])
def test_a_scheduler_moves_at_its_interval_only(interval: Interval, skippable: bool) -> None:
    parameters = new_parameters()
    optimizer = torch.optim.SGD(parameters, 0.1, fused=True)
    rates = Rates(None, 4, lambda made: torch.optim.lr_scheduler.StepLR(made, 1, 0.5), interval, skippable)
    update = Update(optimizer, rates, None)
    found = []
    for number in range(4):
        set_gradients(parameters, number)
        found.append(float(update.apply(None).lr))
        update.advance("epoch" if number % 2 else "evaluation", None)
    assert found == ([0.1, 0.1, 0.05, 0.05] if interval == "epoch" else [0.1, 0.05, 0.05, 0.025])


def test_plateau_gets_the_metric_and_its_state_is_kept() -> None:
    def build() -> tuple[list[nn.Parameter], Update]:
        parameters = new_parameters()

        def make_scheduler(made: torch.optim.Optimizer) -> torch.optim.lr_scheduler.ReduceLROnPlateau:
            return torch.optim.lr_scheduler.ReduceLROnPlateau(made, factor=0.5, patience=1)

        optimizer = torch.optim.SGD(parameters, 0.1)
        return parameters, Update(optimizer, Rates(None, None, make_scheduler, "evaluation", False), None)

    _, update = build()
    update.advance("evaluation", 1.0)
    update.advance("epoch", None)
    update.advance("evaluation", 1.0)
    parameters, resumed = build()
    resumed.load(copy.deepcopy(update.state()))
    resumed.advance("evaluation", 1.0)
    set_gradients(parameters, 0)
    assert resumed.apply(None).lr == 0.05


@pytest.mark.parametrize("skippable", [True, False])
def test_completed_updates_are_counted_where_no_rate_needs_them(skippable: bool) -> None:
    parameters = new_parameters()
    update = Update(torch.optim.SGD(parameters, 0.1, fused=True), Rates(None, None, None, "update", skippable), None)
    for times in (1.0, float("nan"), 1.0) if skippable else (1.0, 1.0):
        set_gradients(parameters, 0, times)
        update.apply(None)
    assert update.state()["completed"] == 2
