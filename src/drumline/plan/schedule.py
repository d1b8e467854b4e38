"""The learning rate as a pure function of the number of completed updates."""

from __future__ import annotations

import math

from drumline.config.train import ScheduleConfig
from drumline.errors import ConfigError


def lr_factor(schedule: ScheduleConfig, step: int, total: int | None) -> float:
    """Share of the peak learning rate for the update after `step` completed ones (so the first update has step 0).

    Warm-up gives (step + 1) / warmup_steps. After it the rate is constant; or falls in a straight line or half a cosine
    (Loshchilov and Hutter 2017, SGDR) from 1 at step warmup_steps to final_fraction at step total - 1; or (wsd, Hu et
    al. 2024, MiniCPM) stays at 1 and falls in a straight line over the last decay_fraction of all updates, of which the
    last has final_fraction. Past the end the last value stays. total may be None for constant only: ConfigError else.
    A schedule named torch has rates that its scheduler alone knows: ConfigError too.
    """
    if schedule.name == "torch":
        raise ConfigError(
            f"train.schedule.name is torch: only {schedule.scheduler or 'its scheduler'} itself knows its rates",
            "read them from the log of a run, or take constant, linear, cosine or wsd",
        )
    warmup = schedule.warmup_steps
    if total is None and schedule.name != "constant":
        raise ConfigError(
            f"train.schedule.name is {schedule.name}, which needs to know how many updates the run has",
            "set train.max_steps, or train.schedule.name to constant",
        )
    if total is not None:
        step = min(step, total - 1)
    if step < warmup:
        return (step + 1) / warmup
    if total is None or schedule.name == "constant":
        return 1.0
    if schedule.name == "wsd":
        decay = min(total - warmup, max(1, round(schedule.decay_fraction * total)))
        done = max(0.0, (step + 1 - (total - decay)) / decay)
    else:
        done = (step - warmup) / max(1, total - 1 - warmup)
    if schedule.name == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return (1 - done) + done * schedule.final_fraction
