"""A run that is watched for host syncs; a module of its own, so that launched ranks can import it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from drumline import Trainer
from drumline.parallel.strategy import Batch
from tests.ranks.training import WIDTH, Case, MaskedRows, config_of

WARM_UP, LOG_EVERY = 4, 20
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaMemcpy",
    "Memcpy DtoH (Device -> Pageable)",
)
"""What makes the host wait for the device, as the profiler calls it. The loop's own look at the window before the
last one is an event's (cudaEventSynchronize): work is queued behind it."""


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    error: Tensor = (model(batch["x"].float()).squeeze(-1) - batch["y"].float()).square() * batch["mask"]
    return error.mean()


def waits_of(directory: str, train: Mapping[str, Any], parallel: Mapping[str, Any], reads: bool = False) -> list[str]:
    """What makes this rank's host wait between warm-up and log line; `reads`: the user looks at a value himself.

    torch itself raises at a wait that it knows of, unless the user reads.
    """
    settings = {"global_batch": 16, "max_steps": LOG_EVERY, "optimizer": {"name": "adamw"}, "max_norm": 1.0, **train}
    config = config_of(
        Case(directory, {"train": settings, "parallel": {"kind": "auto", "timeout_s": 60, **parallel}}),
        track={"every": LOG_EVERY, "console": False},
        hardware={"device": "cuda"},
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    with Trainer(model, config, MaskedRows(400), loss=squared_error) as trainer:
        steps = trainer.steps()
        for _ in range(WARM_UP):
            next(steps)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as watched:
            torch.cuda.set_sync_debug_mode("default" if reads else "error")
            try:
                with record_function("watched"):
                    for _ in range(WARM_UP, LOG_EVERY - 1):
                        assert next(steps).logged is None
                        if reads:
                            next(model.parameters()).detach().sum().item()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        # In fp16 the first updates may be skipped until the scale is found, and are made up for.
        assert any(info.logged is not None for info in steps)
    return [f"{name} {count}x" for name, count in waits_in(watched).items()]


def waits_in(watched: profile) -> Counter[str]:
    """The waits inside of the span; the profiler itself waits for the device when it ends."""
    events = list(watched.events())
    (span,) = [event.time_range for event in events if event.name == "watched" and event.device_type == DeviceType.CPU]
    inside = [event for event in events if span.start <= event.time_range.start <= span.end]
    return Counter(event.name for event in inside if event.name in WAITS)
