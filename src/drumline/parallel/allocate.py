"""Optimizer state made before the first update: a step must find its memory, since one half made cannot be undone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Make what Adam, AdamW and SGD with momentum would make in their first step; state that is there stays.

    An optimizer with a method `allocate` does it itself; any other makes its state in its first step. Zero momentum
    gives the first update that none gives, but for a dampening, which none leaves out.
    """
    own: Any = getattr(optimizer, "allocate", None)
    if own is not None:
        own()
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if not p.requires_grad or optimizer.state.get(p):
                continue
            if isinstance(optimizer, torch.optim.Adam):
                optimizer.state[p].update(adam_state(p, group))
            elif isinstance(optimizer, torch.optim.SGD) and group["momentum"] and not group["dampening"]:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)


def adam_state(p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """What torch.optim.Adam keeps of one parameter before its first step."""
    on_device = bool(group.get("capturable") or group.get("fused"))
    wide = not group.get("fused") and torch.get_default_dtype() == torch.float64
    step = torch.zeros((), dtype=torch.float64 if wide else torch.float32, device=p.device if on_device else "cpu")
    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
    return {"step": step} | {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in names}
