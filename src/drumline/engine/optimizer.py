"""Optimizers by name, fused where the device has it."""

from __future__ import annotations

import torch
from torch import nn

from drumline.config.train import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW or SGD over the trainable parameters, fused for floating-point parameters on one device."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    settings = config.optimizer
    fused = all(p.is_floating_point() and p.device.type in ("cuda", "cpu") for p in parameters)
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, config.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=fused
        )
    return torch.optim.AdamW(
        parameters, config.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay, fused=fused
    )
