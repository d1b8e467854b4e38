"""Log lines: what is written of an interval and of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil
import torch

from drumline.engine.meter import means
from drumline.engine.records import StepInfo
from drumline.engine.run import Interval, Run
from drumline.engine.stopping import after_evaluation


def log_line(run: Run, info: StepInfo) -> dict[str, Any]:
    """Write the interval that ends with this update; means over all ranks, one message for all values.

    This is the only place in the loop where the host waits for a GPU.
    """
    run.learn(keep=0)
    answers = run.groups.side.exchange("log", run.meter.take())
    interval, now = run.interval, run.clock()
    seconds = max(now - interval.began, 1e-9)
    units_per_s = interval.units / seconds
    record: dict[str, Any] = {"kind": "train", "step": info.step, "epoch": info.epoch, **means(answers)}
    record["lr"] = run.last_lr
    record["grad_norm"] = run.last_norm
    record["samples_per_s"] = interval.samples / seconds
    record["units_per_s"] = units_per_s
    record["unit"] = getattr(run.task, "unit", "samples")
    if run.flops_per_unit is not None and run.peak_flops is not None:
        record["mfu"] = units_per_s * run.flops_per_unit / (run.peak_flops * run.groups.world.size)
    record["memory_bytes"] = memory_bytes(run)
    record["loader_wait_s"] = run.feed.waited_s - interval.waited_s
    record["skipped"] = run.progress.skipped
    record["elapsed_s"] = now - run.began
    run.track(record)
    run.interval = Interval(now, run.feed.waited_s)
    return record


def memory_bytes(run: Run) -> int:
    """Most bytes of the device that this process's tensors have held, or its resident set on CPU."""
    if run.groups.device.type == "cuda":
        return torch.cuda.max_memory_allocated(run.groups.device)
    return int(psutil.Process(os.getpid()).memory_info().rss)


def record_evaluation(run: Run, metrics: Mapping[str, float], epoch: int) -> dict[str, float]:
    """Write one evaluation, made in this epoch, and take it into early stopping.

    All ranks decide alike, since the values are agreed.
    """
    progress, rule = run.progress, run.config.evaluate.early_stopping
    found = dict(metrics)
    progress.history.append({"step": progress.step, **found})
    run.track({"kind": "eval", "step": progress.step, "epoch": epoch, **found, "elapsed_s": run.clock() - run.began})
    if rule is not None:
        progress.patience, stop = after_evaluation(rule, progress.patience, found)
        if stop:
            run.reason = "early_stop"
            run.event("early_stop", step=progress.step, best=progress.patience.best)
    return found
