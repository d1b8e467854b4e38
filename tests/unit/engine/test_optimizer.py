from __future__ import annotations

import torch
from torch import nn

from drumline.config.train import OptimizerConfig, TrainConfig
from drumline.engine.optimizer import make_optimizer


def test_adamw_by_its_settings() -> None:
    config = TrainConfig(lr=0.5, optimizer=OptimizerConfig(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2))
    optimizer = make_optimizer(nn.Linear(2, 1), config)
    assert isinstance(optimizer, torch.optim.AdamW)
    settings = optimizer.defaults
    assert (settings["lr"], settings["betas"], settings["eps"], settings["weight_decay"]) == (
        0.5,
        (0.8, 0.9),
        1e-6,
        0.2,
    )
    assert settings["fused"]


def test_sgd_by_its_settings() -> None:
    config = TrainConfig(lr=0.5, optimizer=OptimizerConfig(name="sgd", momentum=0.9, weight_decay=0.0))
    optimizer = make_optimizer(nn.Linear(2, 1), config)
    assert isinstance(optimizer, torch.optim.SGD)
    settings = optimizer.defaults
    assert (settings["lr"], settings["momentum"], settings["weight_decay"], settings["fused"]) == (0.5, 0.9, 0.0, True)


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    (group,) = make_optimizer(model, TrainConfig()).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model[1].parameters()]
