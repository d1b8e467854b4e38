"""Memory that an optimizer takes only at its first step."""

from __future__ import annotations

import torch

MOMENTS = 2
"""State of one parameter, in its own size, for optimizers that are not known: Adam's kind; few have more."""


def due_bytes(optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Bytes on the device that the state of its parameters will take and does not take yet, at most."""
    due = 0
    for group in optimizer.param_groups:
        moments = MOMENTS if not isinstance(optimizer, torch.optim.SGD) else int(bool(group["momentum"]))
        for p in group["params"]:
            if p.requires_grad and p not in optimizer.state and p.device.type == device.type:
                due += moments * getattr(p, "_local_tensor", p).nbytes
    return due
