from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from drumline.config.schema import RunConfig
from drumline.engine.learning import check_scheduler, optimizer_maker, rates, watched_metric
from drumline.errors import ConfigError
from drumline.hardware.records import Hardware, Host
from drumline.parallel.strategy import Rates, Scheduler
from drumline.plan.resolve import resolve

MACHINE = Hardware((), Host(1, 8 << 30, "here"), "no NVIDIA driver")
STEP = {"name": "torch", "scheduler": "StepLR", "options": {"step_size": 1, "gamma": 0.5}}
ONE_CYCLE = {"name": "torch", "scheduler": "OneCycleLR"}


def configured(schedule: dict[str, Any] | None = None, **train: Any) -> RunConfig:
    """Ten updates of two rows, five an epoch."""
    given = {"global_batch": 2, "max_steps": 10, "lr": 0.1, "schedule": schedule or {}, **train}
    return RunConfig.model_validate({"train": given})


def rates_of(
    config: RunConfig, scheduler: Scheduler | None = None, optimizer: Any = None, rows: int | None = 10
) -> Rates:
    return rates(scheduler, optimizer, config, resolve(config, MACHINE, None, rows))


def new_optimizer(model: nn.Module | None = None) -> torch.optim.SGD:
    return torch.optim.SGD((model or nn.Linear(2, 1)).parameters(), 0.1, momentum=0.9)


def made(config: RunConfig, optimizer: torch.optim.Optimizer | None = None) -> Scheduler:
    make = rates_of(config).make_scheduler
    assert make is not None
    return make(optimizer or new_optimizer())


def test_our_schedules_are_functions_of_the_completed_updates() -> None:
    found = rates_of(configured({"name": "linear", "final_fraction": 0.0}))
    assert found.factor is not None
    assert [found.factor(step) for step in (0, 9)] == [1.0, 0.0]
    assert (found.total, found.make_scheduler, found.interval, found.skippable) == (10, None, "update", False)


@pytest.mark.parametrize("train", [{"non_finite": "skip"}, {"precision": "fp16"}])
def test_what_may_be_skipped(train: dict[str, Any]) -> None:
    assert rates_of(configured(**train)).skippable


def test_a_ready_optimizer_keeps_its_own_rate_and_a_made_one_gets_the_schedule() -> None:
    assert rates_of(configured(), optimizer=new_optimizer())[:3] == (None, 10, None)
    assert rates_of(configured(), optimizer=new_optimizer).factor is not None


def test_a_ready_scheduler_is_the_one_that_moves() -> None:
    optimizer = new_optimizer()
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    found = rates_of(configured({"interval": "epoch"}), scheduler, optimizer)
    assert found.make_scheduler is not None
    assert found.make_scheduler(optimizer) is scheduler
    assert (found.factor, found.interval) == (None, "epoch")


def test_torchs_scheduler_by_name() -> None:
    optimizer = new_optimizer()
    scheduler = made(configured(STEP), optimizer)
    assert isinstance(scheduler, lr_scheduler.StepLR)
    assert (scheduler.optimizer, scheduler.step_size, scheduler.gamma) == (optimizer, 1, 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert scheduler.last_epoch == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MultiStepLR", {"milestones": [2, 4]}),
        ("ConstantLR", {"factor": 0.5}),
        ("LinearLR", {}),
        ("ExponentialLR", {"gamma": 0.9}),
        ("PolynomialLR", {"power": 2.0}),
        ("CosineAnnealingLR", {"T_max": 10, "eta_min": 0.01}),
        ("CosineAnnealingWarmRestarts", {"T_0": 2}),
        ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1}),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 10}),
        ("OneCycleLR", {"max_lr": 0.1, "epochs": 2, "steps_per_epoch": 5}),
    ],
)
def test_every_scheduler_that_a_config_can_hold(name: str, options: dict[str, Any]) -> None:
    scheduler = made(configured({"name": "torch", "scheduler": name, "options": options}))
    assert type(scheduler).__name__ == name


def test_a_value_for_each_group() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], 0.1, momentum=0.9)
    options = {"max_lr": [0.1, 0.2], "total_steps": 10}
    made(configured({**ONE_CYCLE, "options": options}), optimizer)
    assert [group["max_lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    with pytest.raises(ConfigError, match="OneCycleLR cannot be made with them"):
        made(configured({**ONE_CYCLE, "options": options}))


def refused(schedule: dict[str, Any], rows: int | None = 10, **train: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config = configured(schedule, **train)
        make = rates_of(config, rows=rows).make_scheduler
        assert make is not None
        make(new_optimizer())
    return str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "parts"),
    [
        ({"scheduler": "SteppLR"}, ["has no SteppLR", "such as StepLR"]),
        ({"scheduler": "Optimizer"}, ["has no Optimizer"]),
        ({"scheduler": "LRScheduler"}, ["has no LRScheduler"]),
        ({"scheduler": "LambdaLR"}, ["LambdaLR is made of functions", "scheduler="]),
        ({"scheduler": "MultiplicativeLR"}, ["functions"]),
        ({"scheduler": "SequentialLR"}, ["SequentialLR is made of other schedulers"]),
        ({"scheduler": "ChainedScheduler"}, ["other schedulers"]),
        (
            {"scheduler": "StepLR", "options": {"step_siz": 1}},
            ["options.step_siz: StepLR has no such option", "did you mean step_size?", "step_size and gamma"],
        ),
        ({"scheduler": "StepLR", "options": {"step_size": 1, "last_epoch": 3}}, ["options.last_epoch"]),
        ({"scheduler": "CyclicLR", "options": {"scale_fn": "f"}}, ["options.scale_fn"]),
        ({"scheduler": "StepLR"}, ["StepLR: missing a required argument: 'step_size'"]),
        ({"scheduler": "StepLR", "options": {"step_size": "two"}}, ["StepLR cannot be made with them"]),
        ({"scheduler": "StepLR", "options": {"step_size": 0}}, ["StepLR cannot be made with them"]),
        ({"scheduler": "ConstantLR", "options": {"factor": 2.0}}, ["factor", "between 0 and 1"]),
        ({"scheduler": "OneCycleLR", "options": {"max_lr": 0.1}}, ["OneCycleLR cannot be made with them"]),
    ],
)
def test_names_and_options_that_torch_does_not_have(schedule: dict[str, Any], parts: list[str]) -> None:
    message = refused({"name": "torch", **schedule})
    assert all(part in message for part in parts), message


def test_plateau_looks_at_evaluations() -> None:
    options: dict[str, Any] = {"name": "torch", "scheduler": "ReduceLROnPlateau", "options": {"patience": 1}}
    scheduler = made(configured({**options, "interval": "evaluation"}))
    assert isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    optimizer = new_optimizer()
    ready = lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ConfigError, match=r"interval is update\n.*interval to evaluation"):
        rates_of(configured(), ready, optimizer)
    assert rates_of(configured({"interval": "evaluation"}), ready, optimizer).interval == "evaluation"


def test_a_scheduler_that_ends_before_the_run_is_refused_at_the_start() -> None:
    message = refused({**ONE_CYCLE, "options": {"max_lr": 0.1, "total_steps": 9}})
    assert "OneCycleLR ends after 9 moves (total_steps), and the run makes 10 updates" in message
    assert "set its total_steps to 10" in message
    by_epoch = {**ONE_CYCLE, "options": {"max_lr": 0.1, "total_steps": 1}, "interval": "epoch"}
    assert "the run makes 2 epochs" in refused(by_epoch)
    assert "the run makes 3 epochs" in refused(by_epoch, rows=None, max_steps=None, epochs=3)
    optimizer = new_optimizer()
    ready = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    rates_of(configured(), ready, optimizer)
    optimizer.step()
    ready.step()
    with pytest.raises(ConfigError, match=r"10 updates after the 1 that it has made\n.*total_steps to 11"):
        rates_of(configured(), ready, optimizer)


def test_a_length_that_is_not_known_is_not_judged() -> None:
    config = configured({**ONE_CYCLE, "options": {"max_lr": 0.1, "total_steps": 3}}, max_steps=None, epochs=1)
    make = rates_of(config, rows=None).make_scheduler
    assert make is not None
    make(new_optimizer())


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            {**ONE_CYCLE, "options": {"max_lr": 0.1, "total_steps": 100}},
            "OneCycleLR is made for 100 moves (total_steps)",
        ),
        ({"name": "torch", "scheduler": "CosineAnnealingLR", "options": {"T_max": 11}}, "11 moves (T_max)"),
        ({"name": "torch", "scheduler": "LinearLR", "options": {"total_iters": 20}}, "20 moves (total_iters)"),
    ],
)
def test_a_scheduler_longer_than_the_run_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, schedule: dict[str, Any], said: str
) -> None:
    made(configured(schedule))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert said in record.getMessage()
    assert "the run has 10 updates: its rates are the first of that sequence" in record.getMessage()


def test_one_as_long_as_the_run_is_not(caplog: pytest.LogCaptureFixture) -> None:
    made(configured({**ONE_CYCLE, "options": {"max_lr": 0.1, "total_steps": 10}}))
    made(configured(STEP))
    assert not caplog.records


def test_two_ways_to_say_it_are_refused() -> None:
    optimizer = new_optimizer()
    with pytest.raises(ConfigError, match=r"was handed in, and train\.schedule\.scheduler is StepLR"):
        rates_of(configured(STEP), lr_scheduler.StepLR(optimizer, 1), optimizer)
    with pytest.raises(ConfigError, match="interval is epoch, and the schedule cosine moves with each update"):
        rates_of(configured({"interval": "epoch"}))


def test_our_schedule_needs_the_runs_length() -> None:
    with pytest.raises(ConfigError, match="needs to know how many updates"):
        rates_of(configured(max_steps=None, epochs=1), rows=None)


def test_the_optimizer_of_the_config_a_made_one_and_a_ready_one() -> None:
    model = nn.Linear(2, 1)
    config = configured(optimizer={"name": "sgd"})
    assert isinstance(optimizer_maker(None, config)(model), torch.optim.SGD)
    ready = new_optimizer(model)
    assert optimizer_maker(ready, config)(model) is ready
    assert optimizer_maker(new_optimizer, config) is new_optimizer
    with pytest.raises(ConfigError, match="none of the model's parameters"):
        optimizer_maker(new_optimizer(), config)(model)


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [
        ({"rules": [{"pattern": "*", "lr_factor": 2}]}, "rules"),
        ({"rules": [{"pattern": "*", "weight_decay": 0.0}]}, "rules"),
        ({"layer_decay": 0.9}, "layer_decay"),
    ],
)
def test_groups_are_for_our_own_optimizer(optimizer: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.optimizer\.{key} is for the optimizer that the config makes"):
        optimizer_maker(new_optimizer, configured(optimizer=optimizer))
    freezing = configured(optimizer={"rules": [{"pattern": "bias", "freeze": True}]})
    assert optimizer_maker(new_optimizer, freezing) is new_optimizer


def test_a_scheduler_comes_with_its_optimizer() -> None:
    optimizer = new_optimizer()
    for scheduler in (lr_scheduler.StepLR(optimizer, 1), lr_scheduler.ReduceLROnPlateau(optimizer), None):
        check_scheduler(scheduler, optimizer)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    for other, match in ((None, "without its optimizer"), (new_optimizer(), "another optimizer's")):
        with pytest.raises(ConfigError, match=match):
            check_scheduler(scheduler, other)
    with pytest.raises(ConfigError, match="a float was handed in as scheduler="):
        check_scheduler(0.1, optimizer)


def test_the_watched_metric() -> None:
    config = configured({"metric": "accuracy"}).train.schedule
    assert watched_metric(config, {"loss": 1.0, "accuracy": 0.5}) == 0.5
    with pytest.raises(ConfigError, match="an evaluation gives no accuracy") as caught:
        watched_metric(config, {"loss": 1.0, "acuracy": 0.5})
    assert caught.value.fix == "did you mean acuracy? it gives acuracy and loss"
